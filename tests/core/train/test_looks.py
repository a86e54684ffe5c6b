"""Looks whose answers could not all be judged, and the look at the weights that an early end leaves."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from core.damage.eprocess import EProcess
from core.jobs import UserError
from core.store import checkpoints, evaluations, looks
from core.tasks.pool import Job, VerifierPool
from core.tasks.verifiers.verdict import Outcome, Verdict
from core.train.looks import UnjudgedError
from core.train.loop import run_training
from core.train.step import StepRunner
from tests.core.train.service import Service


class FailingPool:
    """Grades through a real pool, but gives no verdict where ``fails(items graded so far, item id)`` says so."""

    def __init__(self, pool: VerifierPool, fails: Callable[[int, str], bool]) -> None:
        self._pool = pool
        self._fails = fails
        self.seen: dict[str, int] = {}

    def grade(self, jobs: Sequence[Job]) -> list[Verdict]:
        verdicts = self._pool.grade(jobs)
        for place, job in enumerate(jobs):
            times = self.seen[job.item.id] = self.seen.get(job.item.id, 0) + 1
            if self._fails(times, job.item.id):
                verdicts[place] = replace(verdicts[place], verdict=Outcome.INFRA_ERROR, reason="the grader is gone")
        return verdicts


def look_rows(service: Service, run_id: str) -> list[Any]:
    with service.db.read() as session:
        return looks.list_(session, run_id)


def looked_at(service: Service, run_id: str) -> list[tuple[int, int]]:
    return [(row.step, row.number) for row in look_rows(service, run_id)]


@pytest.mark.parametrize("failures", [1, 2])
def test_an_answer_that_could_not_be_judged_is_judged_again(service, pool, failures) -> None:
    """The gold check grades each item once, a base run once, a repeat once: the fourth grading is the look's first."""
    run_id = service.post(looks={"every": 1, "m": 10, "base_runs": 2}, max_steps=1, num_generations=2)
    failing = FailingPool(pool, lambda times, item: 4 <= times < 4 + failures)
    assert run_training(service.attempt(run_id), failing).state == "succeeded"
    [row] = look_rows(service, run_id)
    asked = {drawn["item_id"] for drawn in row.draw}
    with service.db.read() as session:
        verdicts = evaluations.verdicts(session, row.evaluation_id)
    assert verdicts.keys() == asked
    assert all(found != [evaluations.NO_CLAIM] for found in verdicts.values())
    assert {failing.seen[item] for item in asked} == {4 + failures}
    assert row.rule_state["infra"] == 0


def test_a_look_that_mostly_could_not_be_judged_is_no_look(service, pool) -> None:
    run_id = service.post(looks={"every": 1, "m": 10, "base_runs": 2}, max_steps=1, num_generations=2)
    failing = FailingPool(pool, lambda times, item: times >= 4)
    with pytest.raises(UnjudgedError, match="10 of 10 answers of suite holdout at step 1"):
        run_training(service.attempt(run_id), failing)
    assert look_rows(service, run_id) == []


def test_one_unjudged_answer_in_ten_counts_as_unchanged_and_is_reported(service, pool) -> None:
    run_id = service.post(looks={"every": 1, "m": 10, "base_runs": 2}, max_steps=1, num_generations=2)
    chosen: list[str] = []

    def fails(times: int, item: str) -> bool:
        if times == 4 and not chosen:
            chosen.append(item)
        return times >= 4 and item in chosen

    run_training(service.attempt(run_id), FailingPool(pool, fails))
    [row] = look_rows(service, run_id)
    assert row.rule_state["infra"] == 1
    assert {drawn["d"] for drawn in row.draw if drawn["item_id"] in chosen} == {0.0}


@pytest.mark.parametrize("rule", ["eprocess", "mcnemar_spending"])
def test_a_run_that_ends_by_the_clock_is_looked_at_where_it_ends(service, pool, monkeypatch, rule) -> None:
    run_id = service.post(stop={"max_hours": 1.0}, damage_stop={"rule": rule, "alpha": 0.4})
    context = service.attempt(run_id)
    _an_hour_passes_in_step(4, monkeypatch)
    outcome = run_training(context, pool)
    assert (outcome.state, outcome.reason) == ("succeeded", "max_hours 1 reached")
    assert looked_at(service, run_id) == [(3, 1), (4, 2)]  # the second of the two that the rule was frozen for
    assert look_rows(service, run_id)[-1].rule_state["frozen"]["looks"] == 2
    service.lost(context)
    assert run_training(service.attempt(run_id), pool) == outcome
    assert looked_at(service, run_id) == [(3, 1), (4, 2)]


def test_damage_found_by_the_look_at_the_end_counts(service, pool, monkeypatch) -> None:
    run_id = service.post(stop={"max_hours": 1.0}, damage_stop={"rule": "eprocess", "action": "stop"})
    original = EProcess.look

    def decide_second(rule: EProcess, state: Any, observations: Any) -> Any:
        found = original(rule, state, observations)
        return replace(found, decided=found.number == 2)

    monkeypatch.setattr(EProcess, "look", decide_second)
    _an_hour_passes_in_step(4, monkeypatch)
    outcome = run_training(service.attempt(run_id), pool)
    assert (outcome.state, outcome.reason) == ("damage_stopped", "the damage rule decided at step 4")
    with service.db.read() as session:
        assert checkpoints.latest(session, run_id).step == 4


def test_a_stop_that_a_look_caused_is_not_looked_at_twice(service, pool) -> None:
    run_id = service.post(looks={"every": 1, "m": 10, "base_runs": 2}, stop={"patience": 1})
    run_training(service.attempt(run_id), pool)
    steps = [step for step, _ in looked_at(service, run_id)]
    assert steps == sorted(set(steps))


def test_a_run_without_looks_ends_by_the_clock_without_one(service, pool, monkeypatch) -> None:
    run_id = service.post(looks=None, damage_stop=None, stop={"max_hours": 1.0})
    _an_hour_passes_in_step(2, monkeypatch)
    assert run_training(service.attempt(run_id), pool).reason == "max_hours 1 reached"
    assert looked_at(service, run_id) == []


def test_a_card_that_ran_out_of_memory_is_the_users_to_mend(service, pool, monkeypatch) -> None:
    def run_out(*given: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total of ...")

    monkeypatch.setattr(StepRunner, "run", run_out)
    with pytest.raises(UserError, match=r"cpu ran out of memory \(CUDA out of memory\)") as refused:
        run_training(service.attempt(service.post(looks=None, damage_stop=None)), pool)
    assert refused.value.code == "out_of_memory"


def _an_hour_passes_in_step(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from core.train import progress

    original, passed, real = StepRunner.run, [0.0], progress.monotonic

    def run(runner: StepRunner, number: int) -> Any:
        if number == step:
            passed[0] = 3600.0
        return original(runner, number)

    monkeypatch.setattr(StepRunner, "run", run)
    monkeypatch.setattr(progress, "monotonic", lambda: real() + passed[0])
