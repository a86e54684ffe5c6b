"""A whole train run on a tiny model, undisturbed and killed."""

import pytest

from core.store import checkpoints, evaluations, looks, metrics, prespecs, rollouts, runs
from core.store.errors import StaleAttempt
from core.tasks.pool import VerifierPool
from core.train.loop import run_training
from tests.core.train.service import Killed, ScriptedControl, Service


def test_a_run_leaves_every_record_it_promises(service: Service, pool: VerifierPool) -> None:
    run_id = service.post()
    outcome = run_training(service.attempt(run_id), pool)
    assert (outcome.state, outcome.reason) == ("succeeded", "6 steps finished")
    with service.db.read() as session:
        run = runs.get(session, run_id)
        curves = metrics.curves(session, run_id)
        rows = checkpoints.list_(session, run_id)
        look_rows = looks.list_(session, run_id)
        base = evaluations.base_evaluations(session, run_id, "holdout")
        samples = rollouts.page(session, run_id, limit=200).items
        frozen = prespecs.get(session, run.prespecification_id)
    assert [point.step for point in curves["reward"].points] == [1, 2, 3, 4, 5, 6]
    assert [point.step for point in curves["heldout/accuracy"].points] == [0, 3, 6]
    assert [row.step for row in rows] == [0, 2, 4, 6]
    assert [(row.step, row.number, row.n) for row in look_rows] == [(3, 1, 10), (6, 2, 10)]
    assert [evaluation.purpose for evaluation in base] == ["base", "base_repeat"]
    assert all(evaluation.n_items == 20 for evaluation in base)
    assert len(samples) == 6 * 3 * 4
    assert frozen.frozen_at < look_rows[0].created_at
    assert look_rows[0].draw != look_rows[1].draw
    assert run.step == 6


REPEATABLE = ("reward", "loss", "entropy", "kl", "grad_norm", "heldout/accuracy", "weights/changed_share", "lr")


def what_came_out(service: Service, run_id: str) -> dict[str, object]:
    """Everything of a run that must not depend on interruptions."""
    with service.db.read() as session:
        curves = metrics.curves(session, run_id, keys=REPEATABLE)
        return {
            "weights": {row.step: row.sha256 for row in checkpoints.list_(session, run_id)},
            "curves": {key: [(p.step, p.value) for p in curve.points] for key, curve in curves.items()},
            "samples": [
                (row.step, row.item_id, row.token_ids, row.reward, row.advantage)
                for row in rollouts.page(session, run_id, limit=200).items
            ],
        }


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, pool: VerifierPool) -> dict[str, object]:
    service = Service(tmp_path_factory.mktemp("undisturbed"))
    run_id = service.post()
    run_training(service.attempt(run_id), pool)
    return what_came_out(service, run_id)


@pytest.mark.parametrize("questions", [6, 11])
def test_killed_again_and_again_it_ends_with_the_same_bits(service, undisturbed, pool, questions) -> None:
    """Each attempt dies at its n-th safe point: in base evaluations, between rollouts and update, in looks."""

    def die(question: int) -> None:
        if question >= questions:
            raise Killed

    run_id, attempts = service.post(), 0
    while attempts < 15:
        context = service.attempt(run_id, ScriptedControl(die))
        attempts += 1
        try:
            run_training(context, pool)
            break
        except Killed:
            service.lost(context)
    found = what_came_out(service, run_id)
    assert attempts > 1
    assert found["curves"] == {**undisturbed["curves"], "heldout/accuracy": found["curves"]["heldout/accuracy"]}
    assert [step for step, _ in found["curves"]["heldout/accuracy"]] == [0, 3, 6]
    assert found["samples"] == undisturbed["samples"]
    assert found["weights"] == undisturbed["weights"]


@pytest.mark.parametrize(("asked", "state"), [("pause", "paused"), ("cancel", "cancelled"), ("drain", "interrupted")])
def test_a_request_ends_the_attempt_with_a_checkpoint_of_the_last_step(service, pool, asked, state) -> None:
    run_id = service.post()
    context = service.attempt(run_id, ScriptedControl(lambda question: asked if question > 8 else None))
    outcome = run_training(context, pool)
    assert outcome.state == state
    with service.db.read() as session:
        run = runs.get(session, run_id)
        newest = checkpoints.latest(session, run_id)
    assert 0 < run.step < 6
    assert newest is not None
    assert newest.step == run.step
    assert newest.has_optimizer


def test_a_gradient_that_stays_infinite_fails_the_run_and_keeps_good_weights(service, pool) -> None:
    run_id = service.post(learning_rate=100.0, nonfinite_limit=2, looks=None, damage_stop=None)
    outcome = run_training(service.attempt(run_id), pool)
    assert outcome.state == "failed"
    assert outcome.error is not None
    assert outcome.error["code"] == "nonfinite_gradients"


def test_weights_from_a_stale_attempt_are_refused(service, pool) -> None:
    run_id = service.post()
    first = service.attempt(run_id)
    service.lost(first)
    service.attempt(run_id)
    with pytest.raises(StaleAttempt):
        run_training(first, pool)
