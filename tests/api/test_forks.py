"""Forks whose recipe cannot be accepted: the field is named where the client wrote it."""

from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.api.conftest import Builder, FinishedRun


@pytest.mark.parametrize(
    ("overrides", "param"),
    [
        ({"max_steps": "many"}, "overrides.max_steps"),
        ({"looks": {"every": 0}}, "overrides.looks.every"),
        ({"max_steps": None}, "overrides.max_steps"),
        ({"after": ["run:ffffffffffff"]}, "overrides.after.0"),
        ({"device": {"count": 2}}, "overrides.device.count"),
        ({"device": {"memory_gib": 0.5}}, "overrides.device.memory_gib"),
        ({"prompts_per_step": 512}, "data.holdout"),
    ],
)
@pytest.mark.parametrize("from_step", [4, "scratch"])
def test_fault_of_a_field_is_told_of_the_overrides_where_these_set_it(
    client: TestClient, finished: FinishedRun, overrides: dict[str, Any], param: str, from_step: int | str
) -> None:
    answer = client.post(f"/runs/{finished.id}/fork", json={"from_step": from_step, "overrides": overrides})
    assert (answer.status_code, answer.json()["error"]["param"]) == (422, param), answer.text


@pytest.mark.parametrize("optimizer", [{"name": "sgd"}, {"name": "sgd", "momentum": 0.9}])
def test_fork_from_a_checkpoint_keeps_the_kind_of_optimizer(
    client: TestClient, finished: FinishedRun, optimizer: dict[str, Any]
) -> None:
    body = {"from_step": 4, "overrides": {"optimizer": optimizer}}
    answer = client.post(f"/runs/{finished.id}/fork", json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (422, "overrides.optimizer")
    assert "step 4 holds the state of adamw" in error["message"]
    assert f"run:{finished.id}/step-4" in error["hint"]
    assert client.post(f"/runs/{finished.id}/fork", json=body | {"from_step": "scratch"}).status_code == 201


def test_momentum_may_change_but_not_appear_or_vanish(client: TestClient, build: Builder) -> None:
    fence = build.running(optimizer={"name": "sgd", "momentum": 0.9})
    build.checkpoint(fence, 0)
    build.checkpoint(fence, 4)
    build.finish(fence)

    def status(step: int, optimizer: dict[str, Any]) -> int:
        body = {"from_step": step, "overrides": {"optimizer": optimizer}}
        return client.post(f"/runs/{fence.run_id}/fork", json=body).status_code

    assert status(4, {"momentum": 0.5}) == 201
    assert status(4, {"momentum": 0}) == 422
    assert status(0, {"momentum": 0}) == 201
