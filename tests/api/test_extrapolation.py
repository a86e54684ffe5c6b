"""Eval recipes between two checkpoints: references are pinned and protected, and what is no line is refused by its field."""

import json
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.api.conftest import FinishedRun

EVAL: dict[str, Any] = {
    "kind": "eval",
    "suites": [{"suite": "gsm8k", "n": 2, "items": 10}],
    "device": {"kind": "cpu", "memory_gib": 64},
    "max_completion_length": 64,
}


def _between(run_id: str, a: str = "step-4", b: str = "step-8", alpha: Any = 1.5) -> dict[str, Any]:
    return EVAL | {"extrapolation": {"a": f"run:{run_id}/{a}", "b": f"run:{run_id}/{b}", "alpha": alpha}}


def test_references_are_stored_with_the_runs_full_id_and_their_step(client: TestClient, finished: FinishedRun) -> None:
    posted = client.post("/runs", json=_between(finished.id[:6], b="last"))
    assert posted.status_code == 201, posted.text
    stored = posted.json()["recipe"]
    assert stored["extrapolation"]["a"] == f"run:{finished.id}/step-4"
    assert stored["extrapolation"]["b"] == stored["model"] == f"run:{finished.id}/step-8"
    assert posted.json()["model"] == stored["model"]


def test_both_checkpoints_are_kept_until_the_run_is_over(client: TestClient, finished: FinishedRun) -> None:
    user = client.post("/runs", json=_between(finished.id)).json()["id"]
    for checkpoint in finished.checkpoints[:2]:
        answer = client.delete(f"/checkpoints/{checkpoint}")
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "checkpoint_in_use")
    client.post(f"/runs/{user}/cancel")
    assert client.delete(f"/checkpoints/{finished.checkpoints[0]}").status_code == 204


def test_a_dry_run_counts_every_arm_and_both_networks(client: TestClient, finished: FinishedRun) -> None:
    one = client.post("/runs?dry_run=true", json=EVAL | {"model": f"run:{finished.id}/step-8"}).json()
    sweep = client.post("/runs?dry_run=true", json=_between(finished.id, alpha=[1, 1.5, 2])).json()
    assert one["cost"]["samples"] == 20
    assert sweep["cost"]["samples"] == 20 * (1 + 4 + 3)  # b, its four other temperatures, three alphas
    weights = [answer["cards"][0]["plan"]["components_gib"]["weights"] for answer in (one, sweep)]
    caches = [answer["cards"][0]["plan"]["components_gib"]["kv_cache"] for answer in (one, sweep)]
    assert weights[1] == pytest.approx(2 * weights[0], abs=0.002)
    assert caches[1] == pytest.approx(2 * caches[0], abs=0.002)


@pytest.mark.parametrize(
    ("changes", "param", "words"),
    [
        ({"a": "run:ID/step-5"}, "extrapolation.a", "no checkpoint at step 5"),
        ({"b": "run:ffff/last"}, "extrapolation.b", "ffff"),
        ({"a": "run:ID/step-8"}, "extrapolation.a", "one model"),
        ({"a": "HuggingFaceTB/SmolLM2-360M-Instruct"}, "extrapolation.a", "layers, hidden"),
    ],
)
def test_what_is_no_line_is_refused_by_its_field(
    client: TestClient, finished: FinishedRun, changes: dict[str, str], param: str, words: str
) -> None:
    line = {"a": "run:ID/step-4", "b": "run:ID/step-8", "alpha": 2} | changes
    named = json.loads(json.dumps(line).replace("ID", finished.id))
    answer = client.post("/runs", json=EVAL | {"extrapolation": named})
    assert answer.status_code == 422
    assert answer.json()["error"]["param"] == param
    assert words in answer.json()["error"]["message"]


def test_a_recipe_without_a_model_is_told_so(client: TestClient) -> None:
    answer = client.post("/runs", json=EVAL)
    assert (answer.status_code, answer.json()["error"]["param"]) == (422, "model")
    assert "missing" in answer.json()["error"]["message"]
