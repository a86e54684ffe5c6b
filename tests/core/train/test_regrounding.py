"""Re-grounding in whole runs on a tiny model: where a jump lands, what it leaves alone, and that no interruption shows."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from core.jobs import Outcome
from core.store import checkpoints, evaluations, events, looks, metrics, rollouts
from core.tasks.pool import VerifierPool
from core.train.loop import run_training
from tests.core.train.service import Killed, ScriptedControl, Service
from tests.core.train.test_resume import QUICK, fork, trained

SHORT: dict[str, Any] = {**QUICK, "max_steps": 4, "save": {"every": 3}}
CYCLES: dict[str, Any] = {**SHORT, "regrounding": {"m": 2, "n": 3}}
ADAPTIVE: dict[str, Any] = {
    **SHORT,
    "regrounding": {"m": 2, "n": 2, "adaptive": True, "candidates": [2, 40], "validation": 8},
}


def weights(service: Service, run_id: str, step: int) -> dict[str, torch.Tensor]:
    with service.db.read() as session:
        row = checkpoints.at_step(session, run_id, step)
    return load_file(service.settings.home / row.path / "model.safetensors")


def hashes(service: Service, run_id: str) -> dict[int, str]:
    """By step; where an attempt ended before its jump and another took it, the later one's."""
    with service.db.read() as session:
        return {row.step: row.sha256 for row in checkpoints.list_(session, run_id)}


def told(service: Service, run_id: str, kind: str) -> list[dict[str, Any]]:
    with service.db.read() as session:
        found = [event.payload for event in events.page(session, run_id).items if event.type == kind]
    return [{name: value for name, value in one.items() if name != "seconds"} for one in found]


def what_came_out(service: Service, run_id: str) -> dict[str, Any]:
    """Everything that must not depend on interruptions."""
    keys = ("reward", "loss", "lr", "regrounding/effective_steps", "regrounding/n", "regrounding/validation_after")
    with service.db.read() as session:
        curves = metrics.curves(session, run_id, keys=keys)
        samples = [(row.step, row.token_ids, row.weights_version) for row in rollouts.page(session, run_id).items]
    last = {one["step"]: one for one in told(service, run_id, "jump")}
    return {
        "weights": hashes(service, run_id)[4],
        "curves": {key: [(point.step, point.value) for point in curve.points] for key, curve in curves.items()},
        "samples": samples,
        "jumps": last,
    }


def undisturbed(tmp_path_factory: pytest.TempPathFactory, pool: VerifierPool, recipe: dict[str, Any]) -> Any:
    service = Service(tmp_path_factory.mktemp("undisturbed"))
    control = ScriptedControl()
    run_id = service.post(**recipe)
    context = service.attempt(run_id, control)
    service.finish(context, run_training(context, pool))
    return service, run_id, control.asked


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory, pool: VerifierPool) -> Any:
    """The same run without a jump: its weights at the first cycle's end are W_e."""
    return undisturbed(tmp_path_factory, pool, {**SHORT, "save": {"every": 2}})


@pytest.fixture(scope="module")
def cycles(tmp_path_factory: pytest.TempPathFactory, pool: VerifierPool) -> Any:
    return undisturbed(tmp_path_factory, pool, CYCLES)


@pytest.fixture(scope="module")
def adaptive(tmp_path_factory: pytest.TempPathFactory, pool: VerifierPool) -> Any:
    return undisturbed(tmp_path_factory, pool, ADAPTIVE)


def test_a_jump_lands_where_the_formula_says(plain: Any, cycles: Any) -> None:
    (before, plain_id, _), (after, run_id, _) = plain, cycles
    start, end, jumped = weights(before, plain_id, 0), weights(before, plain_id, 2), weights(after, run_id, 2)
    moved = 0.0
    for name, tensor in jumped.items():
        expected = end[name].double() + 1.5 * (end[name].double() - start[name].double())
        torch.testing.assert_close(tensor.double(), expected, rtol=3e-7, atol=1e-9)
        moved += float((end[name].double() - start[name].double()).square().sum())
    [first, _] = told(after, run_id, "jump")
    assert (first["step"], first["from_step"], first["n"], first["effective_steps"]) == (2, 0, 3, 5)
    assert first["moved"] == pytest.approx(moved**0.5)
    assert first["jumped"] == pytest.approx(1.5 * moved**0.5)


def test_steps_up_to_the_first_jump_and_the_items_of_all_steps_are_the_plain_runs(plain: Any, cycles: Any) -> None:
    def asked(service: Service, run_id: str) -> tuple[list[Any], list[Any]]:
        with service.db.read() as session:
            rows = rollouts.page(session, run_id, limit=100).items
            rates = metrics.curves(session, run_id, keys=["lr"])["lr"].points
        return [(row.step, row.item_id) for row in rows], [point.value for point in rates]

    assert asked(*plain[:2]) == asked(*cycles[:2])


def test_curves_show_real_steps_and_what_they_amount_to(cycles: Any) -> None:
    service, run_id, _ = cycles
    with service.db.read() as session:
        points = metrics.curves(session, run_id, keys=["regrounding/effective_steps"])
        marks = [(mark.kind, mark.step) for mark in metrics.marks(session, run_id) if mark.kind == "jump"]
        versions = {(row.step, row.weights_version) for row in rollouts.page(session, run_id, limit=100).items}
    assert [(p.step, p.value) for p in points["regrounding/effective_steps"].points] == [
        (1, 1),
        (2, 5),
        (3, 6),
        (4, 10),
    ]
    assert marks == [("jump", 2), ("jump", 4)]
    assert versions == {(1, 0), (2, 100), (3, 299), (4, 300)}


def test_a_step_at_rate_0_after_a_jump_changes_nothing(cycles: Any, pool: VerifierPool) -> None:
    service, run_id, _ = cycles
    child = fork(service, run_id, 2, **SHORT, learning_rate=0.0)
    run_training(service.attempt(child), pool)
    assert hashes(service, child)[4] == hashes(service, run_id)[2]


def test_norms_can_be_left_out_and_moments_forgotten(service: Service, plain: Any, pool: VerifierPool) -> None:
    run_id = trained(
        service, pool, **{**SHORT, "max_steps": 2}, regrounding={"m": 2, "n": 2, "skip_norms": True, "moments": "reset"}
    )
    end, jumped = weights(plain[0], plain[1], 2), weights(service, run_id, 2)
    same = {name for name in end if torch.equal(end[name], jumped[name])}
    assert same == {name for name in end if "norm" in name}
    with service.db.read() as session:
        folder = service.settings.home / checkpoints.at_step(session, run_id, 2).path
    assert not any(tensor.any() for tensor in load_file(folder / "optimizer.safetensors").values())


def test_a_jump_of_0_is_a_plain_run(service: Service, plain: Any, pool: VerifierPool) -> None:
    run_id = trained(service, pool, **SHORT, regrounding={"m": 2, "n": 0})
    assert hashes(service, run_id)[4] == hashes(plain[0], plain[1])[4]
    assert told(service, run_id, "jump") == []


def test_looks_see_the_weights_after_the_jump(service: Service, pool: VerifierPool) -> None:
    run_id = trained(
        service, pool, max_steps=2, looks={"every": 2, "m": 10, "base_runs": 2}, regrounding={"m": 2, "n": 2}
    )
    with service.db.read() as session:
        [look] = looks.list_(session, run_id)
        assert look.checkpoint_sha256 == checkpoints.at_step(session, run_id, 2).sha256
        assert metrics.curves(session, run_id, keys=["time/worked_s"])["time/worked_s"].points[0].step == 2


def resumed(service: Service, pool: VerifierPool, recipe: dict[str, Any], script: Callable[[int], Any]) -> str:
    """Run with one attempt disturbed by ``script`` and as many more as it takes."""
    run_id = service.post(**recipe)
    context = service.attempt(run_id, ScriptedControl(script))
    try:
        outcome: Outcome | None = run_training(context, pool)
    except Killed:
        outcome = None
    if outcome is None or outcome.state != "succeeded":
        service.lost(context)
        assert run_training(service.attempt(run_id), pool).state == "succeeded"
    return run_id


def die_at(question: int) -> Callable[[int], None]:
    def script(asked: int) -> None:
        if asked == question:
            raise Killed

    return script


@pytest.mark.slow
def test_killed_at_any_safe_point_the_cycles_end_with_the_same_bits(service, cycles, pool) -> None:
    expected = what_came_out(*cycles[:2])
    for question in range(2, cycles[2] + 1):
        assert what_came_out(service, resumed(service, pool, CYCLES, die_at(question))) == expected, question


@pytest.mark.slow
def test_killed_at_any_safe_point_a_decision_is_made_again_and_alike(service, adaptive, pool) -> None:
    expected = what_came_out(*adaptive[:2])
    for question in range(3, adaptive[2] + 1, 2):
        assert what_came_out(service, resumed(service, pool, ADAPTIVE, die_at(question))) == expected, question


def test_paused_in_the_middle_of_a_decision_the_undecided_weights_are_kept(service, adaptive, pool) -> None:
    expected = what_came_out(*adaptive[:2])
    asked: list[int] = []

    def ask_to_drain_in_the_decision(question: int) -> str | None:
        with service.db.read() as session:
            rows = evaluations.list_for_run(session, run_id, suite="validation")
        if any(row.status == "finished" for row in rows):
            asked.append(question)
        return "drain" if asked else None

    run_id = service.post(**ADAPTIVE)
    context = service.attempt(run_id, ScriptedControl(ask_to_drain_in_the_decision))
    assert run_training(context, pool).state == "interrupted"
    undecided = hashes(service, run_id)[2]
    service.lost(context)
    assert run_training(service.attempt(run_id), pool).state == "succeeded"
    assert what_came_out(service, run_id) == expected
    with service.db.read() as session:
        both = [row.sha256 for row in checkpoints.list_(session, run_id) if row.step == 2]
    assert both[0] == undecided
    assert both[1] == hashes(*adaptive[:2])[2]


def test_a_fork_begins_a_cycle_of_its_own(service, cycles, pool) -> None:
    service, parent, _ = cycles
    child = fork(service, parent, 3, **{**CYCLES, "max_steps": 6})
    context = service.attempt(child)
    service.finish(context, run_training(context, pool))
    [jump] = told(service, child, "jump")
    assert (jump["step"], jump["from_step"]) == (5, 3)


def test_retention_keeps_the_checkpoint_that_the_cycle_began_with(service, pool) -> None:
    recipe = {**QUICK, "max_steps": 5, "save": {"every": 1, "keep": 1}, "regrounding": {"m": 4, "n": 1, "after": 1}}
    seen: set[tuple[int, ...]] = set()
    run_id = service.post(**recipe)

    def watch(question: int) -> None:
        seen.add(tuple(hashes(service, run_id)))

    run_training(service.attempt(run_id, ScriptedControl(watch)), pool)
    assert (0, 1, 4) in seen
    assert told(service, run_id, "jump")[0]["from_step"] == 1


def test_a_damaged_beginning_of_the_cycle_sends_the_run_back_before_it(service, cycles, pool) -> None:
    run_id = service.post(**CYCLES)

    def die_after_step_3(question: int) -> None:
        if 3 in hashes(service, run_id):
            raise Killed

    context = service.attempt(run_id, ScriptedControl(die_after_step_3))
    with pytest.raises(Killed):
        run_training(context, pool)
    with service.db.read() as session:
        begun = checkpoints.at_step(session, run_id, 2)
    (service.settings.home / begun.path / "model.safetensors").write_bytes(b"short")
    service.lost(context)
    run_training(service.attempt(run_id), pool)
    assert what_came_out(service, run_id) == what_came_out(*cycles[:2])
