"""Inputs of waiting runs: what a run that is not over names in its recipe cannot be deleted."""

from typing import Any

import pytest
from starlette.testclient import TestClient

from core.store import checkpoints, events
from core.store.database import Database
from tests.api.conftest import Builder, FinishedRun

EVAL: dict[str, Any] = {"kind": "eval", "suites": ["gsm8k"], "device": {"kind": "cpu"}}


@pytest.mark.parametrize(
    "body",
    [
        EVAL | {"model": "run:ID/step-4"},
        EVAL | {"model": "smollm2-135m", "against": ["run:ID/step-4"]},
        {"kind": "analysis", "compute": ["weight_linearity"], "run": "run:ID"},
    ],
    ids=["model", "against", "run"],
)
def test_input_of_a_waiting_run_is_kept_until_that_run_is_over(
    client: TestClient, finished: FinishedRun, body: dict[str, Any]
) -> None:
    named = {
        name: [ref.replace("ID", finished.id) for ref in value] if name == "against" else value
        for name, value in body.items()
    }
    named |= {name: body[name].replace("ID", finished.id) for name in ("model", "run") if name in body}
    posted = client.post("/runs", json=named)
    assert posted.status_code == 201, posted.text
    user = posted.json()["id"]
    for path, code in (
        (f"/runs/{finished.id}", "run_in_use"),
        (f"/checkpoints/{finished.checkpoints[0]}", "checkpoint_in_use"),
    ):
        answer = client.delete(path)
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, code)
        assert user in answer.json()["error"]["message"]
    client.post(f"/runs/{user}/cancel")
    assert client.delete(f"/checkpoints/{finished.checkpoints[0]}").status_code == 204
    assert client.delete(f"/runs/{finished.id}").status_code == 204


def test_checkpoint_of_another_step_than_the_waiting_runs_can_be_deleted(
    client: TestClient, finished: FinishedRun
) -> None:
    posted = client.post("/runs", json=EVAL | {"model": f"run:{finished.id}/step-8"})
    assert posted.status_code == 201
    assert client.delete(f"/checkpoints/{finished.checkpoints[0]}").status_code == 204
    assert client.delete(f"/checkpoints/{finished.checkpoints[1]}").status_code == 409


def test_checkpoint_that_last_of_a_run_at_work_may_mean_is_kept_until_pinned(
    client: TestClient, build: Builder, db: Database
) -> None:
    fence = build.running()
    first, second, _newest = build.checkpoint(fence, 4), build.checkpoint(fence, 6), build.checkpoint(fence, 8)
    user = client.post("/runs", json=EVAL | {"model": f"run:{fence.run_id}/last"}).json()["id"]
    assert client.delete(f"/checkpoints/{first}").json()["error"]["code"] == "checkpoint_in_use"
    with db.write() as session:
        pin = {"reference": f"run:{fence.run_id}/last", "model": f"run:{fence.run_id}/step-6", "checkpoint": second}
        events.append(session, user, checkpoints.PINNED, pin)
    assert client.delete(f"/checkpoints/{first}").status_code == 204
    assert client.delete(f"/checkpoints/{second}").status_code == 409


def test_checkpoint_that_a_waiting_run_is_compared_with_as_base_is_kept(
    client: TestClient, build: Builder, finished: FinishedRun
) -> None:
    child = client.post(f"/runs/{finished.id}/fork", json={}).json()["id"]
    fence = build.claimed(child)
    build.checkpoint(fence, 10)
    build.finish(fence)
    posted = client.post("/runs", json=EVAL | {"model": f"run:{child}/step-10", "against": ["base"]})
    assert posted.status_code == 201, posted.text
    assert client.delete(f"/checkpoints/{finished.checkpoints[0]}").status_code == 204
    answer = client.delete(f"/checkpoints/{finished.checkpoints[1]}")
    assert answer.status_code == 409
    assert posted.json()["id"] in answer.json()["error"]["message"]
