"""Runs with the optimizers of large models, through the real store: offloaded is AdamW's bits, eight bits resume exactly."""

from typing import Any

import pytest

from core.store import checkpoints
from core.train.loop import run_training
from tests.core.train.service import Killed, ScriptedControl, Service

QUICK: dict[str, Any] = {"looks": None, "damage_stop": None, "max_steps": 2, "save": {"every": 1}}


def last(service: Service, run_id: str) -> str:
    with service.db.read() as session:
        return checkpoints.list_(session, run_id)[-1].sha256


def whole(service: Service, pool: Any, **changes: Any) -> str:
    run_id = service.post(**QUICK | changes)
    context = service.attempt(run_id)
    service.finish(context, run_training(context, pool))
    return last(service, run_id)


def test_offloaded_on_a_cpu_is_adamw_bit_for_bit(service, pool) -> None:
    assert whole(service, pool, optimizer="adamw_offload") == whole(service, pool, optimizer="adamw")


def test_eight_bit_moments_resume_bit_for_bit(service, pool) -> None:
    straight = whole(service, pool, optimizer="adamw_8bit")

    def die(asked: int) -> None:
        if asked == 4:
            raise Killed

    run_id = service.post(**QUICK | {"optimizer": "adamw_8bit"})
    first = service.attempt(run_id, ScriptedControl(die))
    with pytest.raises(Killed):
        run_training(first, pool)
    service.lost(first)
    assert run_training(service.attempt(run_id), pool).state == "succeeded"
    assert last(service, run_id) == straight
    assert straight != whole(service, pool, optimizer="adamw")
