"""Own reward functions in a whole run: used, counted when they fail, refused when the file is another, equal after a crash."""

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from core.jobs import UserError
from core.store import events, metrics, rollouts
from core.tasks.pool import VerifierPool
from core.train.loop import run_training
from tests.core.train.service import Killed, ScriptedControl, Service

TERM = "file:mine.py:score"
SOURCE = """
import random

def score(prompt, completion, item, most=4):
    if len(completion) % 3 == 0:
        raise ValueError("a third of the lengths fails")
    return random.random() * most
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "rewards"
    made.mkdir()
    (made / "mine.py").write_text(SOURCE)
    return made


def post(service: Service, folder: Path, **term: Any) -> str:
    service.settings = replace(service.settings, rewards_dir=folder)
    digest = hashlib.sha256(SOURCE.encode()).hexdigest()
    rewards = {"auto": 1.0, TERM: {"weight": 0.5, "arguments": {"most": 2}, "sha256": digest} | term}
    return service.post(rewards=rewards, max_steps=2, looks=None, damage_stop=None, save={"every": 1})


def samples(service: Service, run_id: str) -> list[tuple[int, str, float | None, float | None]]:
    with service.db.read() as session:
        rows = rollouts.page(session, run_id, limit=200).items
    return [(row.step, row.text, row.reward_terms[TERM], row.reward) for row in rows]


def test_an_own_function_is_part_of_the_reward_and_its_failures_are_counted(
    service: Service, pool: VerifierPool, folder: Path
) -> None:
    run_id = post(service, folder)
    assert run_training(service.attempt(run_id), pool).state == "succeeded"
    found = samples(service, run_id)
    failed = [one for one in found if len(one[1]) % 3 == 0]
    assert 0 < len(failed) < len(found)
    assert all((value is None) is (len(text) % 3 == 0) for _, text, value, _ in found)
    assert all(0 <= value <= 2 for _, _, value, _ in found if value is not None)
    assert all(
        reward == pytest.approx(0.5 * (value or 0.0), abs=1e-9) or reward >= 1.0 for _, _, value, reward in found
    )
    with service.db.read() as session:
        curves = metrics.curves(session, run_id)
        told = events.payloads(session, run_id, "reward_failed")
    counted = {point.step: point.value for point in curves[f"reward_failed/{TERM}"].points}
    assert counted == {step: float(sum(one[0] == step for one in failed)) for step in (1, 2)}
    assert f"reward_weighted/{TERM}" in curves
    assert {one["term"] for one in told} == {TERM}
    assert told[0]["first"] == "ValueError: a third of the lengths fails"


def test_a_run_that_was_killed_gets_the_same_rewards(service: Service, pool: VerifierPool, folder: Path) -> None:
    whole = post(service, folder)
    context = service.attempt(whole)
    service.finish(context, run_training(context, pool))
    broken = post(service, folder)

    def die(question: int) -> None:
        if question == 4:
            raise Killed

    first = service.attempt(broken, ScriptedControl(die))
    with pytest.raises(Killed):
        run_training(first, pool)
    service.lost(first)
    assert run_training(service.attempt(broken), pool).state == "succeeded"
    assert samples(service, broken) == samples(service, whole)


def test_another_file_or_none_is_refused_before_any_step(service: Service, pool: VerifierPool, folder: Path) -> None:
    run_id = post(service, folder)
    (folder / "mine.py").write_text(SOURCE + "# changed\n")
    context = service.attempt(run_id)
    with pytest.raises(UserError, match="is not the file that the recipe names") as caught:
        run_training(context, pool)
    assert caught.value.code == "unusable_reward"
    service.lost(context)
    (folder / "mine.py").unlink()
    with pytest.raises(UserError, match=r"no file mine\.py"):
        run_training(service.attempt(run_id), pool)


def test_a_file_that_cannot_be_loaded_is_the_users_to_mend(service: Service, pool: VerifierPool, folder: Path) -> None:
    source = "raise RuntimeError('at import')\ndef score(prompt, completion, item): return 1\n"
    (folder / "mine.py").write_text(source)
    run_id = post(service, folder, sha256=hashlib.sha256(source.encode()).hexdigest())
    with pytest.raises(UserError, match="at import"):
        run_training(service.attempt(run_id), pool)
