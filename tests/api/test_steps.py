"""References to a step of a run that is not over: that step must lie ahead of it, within its recipe."""

from typing import Any

import pytest
from starlette.testclient import TestClient

from core.store import runs
from tests.api.conftest import Builder, recipe

EVAL: dict[str, Any] = {"kind": "eval", "suites": ["gsm8k"], "device": {"kind": "cpu"}}


@pytest.mark.parametrize("body", [EVAL, recipe()], ids=["eval", "train"])
def test_step_that_an_unfinished_run_will_never_take_is_refused(
    client: TestClient, build: Builder, body: dict[str, Any]
) -> None:
    run = build.queued(max_steps=12)["id"]
    answer = client.post("/runs", json=body | {"model": f"run:{run}/step-13"})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (422, "model")
    assert "ends at step 12" in error["message"]
    assert client.post("/runs", json=body | {"model": f"run:{run}/step-12"}).status_code == 201


def test_step_that_is_past_without_a_checkpoint_is_refused(client: TestClient, build: Builder) -> None:
    fence = build.running(max_steps=12)
    with build.db.fenced(fence) as session:
        runs.progress(session, fence, phase="train", done=5, total=12, unit="step", step=5)
    answer = client.post("/runs", json=EVAL | {"model": f"run:{fence.run_id}/step-5"})
    assert answer.status_code == 422
    assert "ends at" not in answer.json()["error"]["message"]


def test_step_of_a_run_that_takes_none_is_refused(client: TestClient) -> None:
    run = client.post("/runs", json=EVAL | {"model": "smollm2-135m"}).json()["id"]
    answer = client.post("/runs", json=EVAL | {"model": "smollm2-135m", "against": [f"run:{run}/step-1"]})
    assert (answer.status_code, answer.json()["error"]["param"]) == (422, "against.0")
