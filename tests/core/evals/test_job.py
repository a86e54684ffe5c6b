"""Evaluation runs on a tiny model through the real store: base and checkpoint, greedy and sampled, interrupted."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from core.evals.job import run_evaluation
from core.jobs import UserError
from core.store import checkpoints, evaluations, events, prespecs, runs
from core.store.models import Run
from core.tasks.pool import VerifierPool
from core.train.loop import run_training
from tests.core.train.service import ScriptedControl, Service

SUITE = {
    "suite": "reasoning_gym:chain_sum",
    "items": 6,
    "options": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1, "size": 50},
}


@pytest.fixture(scope="module")
def pool() -> Iterator[VerifierPool]:
    with VerifierPool(workers=1) as shared:
        yield shared


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, pool: VerifierPool) -> tuple[Service, str]:
    service = Service(tmp_path_factory.mktemp("evaluated"))
    run_id = service.post(max_steps=2, looks=None, damage_stop=None)
    context = service.attempt(run_id)
    outcome = run_training(context, pool)
    service.finish(context, outcome)
    return service, run_id


def recipe(**changes: Any) -> dict[str, Any]:
    return {
        "kind": "eval",
        "model": "tiny",
        "suites": [SUITE],
        "max_prompt_length": 200,
        "max_completion_length": 8,
        "device": {"kind": "cpu", "memory_gib": 4},
    } | changes


def test_a_checkpoint_is_compared_with_what_it_started_from(trained: tuple[Service, str], pool: VerifierPool) -> None:
    service, run_id = trained
    suites = [SUITE, {**SUITE, "n": 3}, "holdout"]
    eval_id = service.post_recipe(recipe(model=f"run:{run_id}/last", against=["base"], suites=suites))
    outcome = run_evaluation(service.attempt(eval_id), pool)
    assert (outcome.state, outcome.reason) == ("succeeded", "6 evaluations finished")
    with service.db.read() as session:
        rows = evaluations.list_for_run(session, eval_id)
        verdicts = {row.id: evaluations.verdicts(session, row.id) for row in rows}
    assert [row.model_ref for row in rows] == [f"run:{run_id}/step-2"] * 3 + ["tiny"] * 3
    assert [(row.mode, row.samples) for row in rows[:3]] == [("greedy", 1), ("sampled", 3), ("greedy", 1)]
    assert all(row.status == "finished" for row in rows)
    assert all(row.checkpoint_sha256 for row in rows[:3])
    assert [len(verdicts[row.id]) for row in rows[:3]] == [6, 6, 20]
    assert all(len(found) == 3 for found in verdicts[rows[1].id].values())
    assert verdicts[rows[0].id].keys() == verdicts[rows[3].id].keys()


def test_a_later_attempt_asks_only_what_is_missing(trained: tuple[Service, str], pool: VerifierPool) -> None:
    service, _ = trained
    second = {**SUITE, "items": 5, "n": 2}
    eval_id = service.post_recipe(recipe(suites=[SUITE, second]))
    first = service.attempt(eval_id, ScriptedControl(lambda question: "drain" if question > 1 else None))
    assert run_evaluation(first, pool).state == "interrupted"
    service.lost(first)
    assert run_evaluation(service.attempt(eval_id), pool).state == "succeeded"
    with service.db.read() as session:
        rows = evaluations.list_for_run(session, eval_id)
    assert [(row.suite, row.samples, row.status, row.attempt) for row in rows] == [
        (SUITE["suite"], 1, "finished", 1),
        (SUITE["suite"], 2, "finished", 2),
    ]


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ({"max_completion_length": 4000}, "too_long_for_model", "lower max_prompt_length or max_completion_length"),
        ({"max_prompt_length": 3}, "prompt_too_long", "raise max_prompt_length"),
        ({"suites": ["math500"]}, "unusable_data", "DRIFTLINE_DATA"),
        ({"prompt": {"template_kwargs": {"thinking": True}}}, "unusable_prompt", "template_kwargs sets thinking"),
    ],
)
def test_what_cannot_be_evaluated_is_the_users_to_mend(trained, pool, changes, code, words) -> None:
    service, _ = trained
    context = service.attempt(service.post_recipe(recipe(**changes)))
    with pytest.raises(UserError, match=words) as refused:
        run_evaluation(context, pool)
    assert refused.value.code == code
    service.lost(context)


def test_a_checkpoint_that_is_not_there_is_named(
    trained: tuple[Service, str], pool: VerifierPool, tmp_path: Path
) -> None:
    service, run_id = trained
    context = service.attempt(service.post_recipe(recipe(model=f"run:{run_id}/step-7")))
    with pytest.raises(UserError, match="checkpoints of steps 0, 2"):
        run_evaluation(context, pool)
    service.lost(context)


@pytest.mark.parametrize(
    ("name", "damage", "words"),
    [
        ("model.safetensors", lambda data: data[:-4] + b"\x00\x00\x80\x3f", "model.safetensors differs"),
        ("model.safetensors", lambda data: data[:1000], "model.safetensors differs"),
        ("config.json", lambda data: data[:10], "config.json differs"),
        ("tokenizer.json", lambda data: None, "tokenizer.json is missing"),
        ("manifest.json", lambda data: None, "has no manifest.json"),
        ("manifest.json", lambda data: data[:50], "manifest.json cannot be read"),
        ("manifest.json", lambda data: re.sub(rb'(weights_sha256": ").{8}', rb"\g<1>00000000", data), "other weights"),
    ],
)
def test_a_damaged_checkpoint_is_named_and_not_evaluated(trained, pool, name, damage, words) -> None:
    service, run_id = trained
    with service.db.read() as session:
        row = checkpoints.at_step(session, run_id, 2)
    path = service.settings.home / row.path / name
    before = path.read_bytes()
    after = damage(before)
    context = service.attempt(service.post_recipe(recipe(model=f"run:{run_id}/step-2")))
    path.unlink()
    if after is not None:
        path.write_bytes(after)
    try:
        with pytest.raises(UserError, match=words) as refused:
            run_evaluation(context, pool)
    finally:
        path.write_bytes(before)
    assert refused.value.code == "damaged_checkpoint"
    assert f"run:{run_id}/step-2" in refused.value.message
    with service.db.read() as session:
        assert evaluations.list_for_run(session, context.run_id) == []
    service.lost(context)


def test_two_blocks_of_one_suite_are_both_asked_whatever_came_between(trained, pool) -> None:
    service, _ = trained
    eval_id = service.post_recipe(recipe(suites=[SUITE, {**SUITE, "items": 5}]))
    first = service.attempt(eval_id, ScriptedControl(lambda question: "drain" if question > 1 else None))
    assert run_evaluation(first, pool).state == "interrupted"
    service.lost(first)
    context = service.attempt(eval_id)
    service.finish(context, run_evaluation(context, pool))
    with service.db.read() as session:
        rows = evaluations.list_for_run(session, eval_id)
    assert [(row.n_items, row.status) for row in rows] == [(6, "finished"), (5, "finished")]


def test_a_long_suite_name_fits_the_phase_column(trained, pool, monkeypatch) -> None:
    service, _ = trained
    phases = []
    real = runs.progress
    monkeypatch.setattr(
        runs, "progress", lambda *given, phase, **more: (phases.append(phase), real(*given, phase=phase, **more))
    )
    context = service.attempt(
        service.post_recipe(
            recipe(suites=[{**SUITE, "suite": "reasoning_gym:simple_equations", "options": {"size": 6}}])
        )
    )
    service.finish(context, run_evaluation(context, pool))
    assert "eval: reasoning_gym:simple_equat" in phases
    assert max(map(len, phases)) <= Run.__table__.c.phase.type.length


def test_what_best_and_last_mean_is_settled_by_the_first_attempt(trained, pool) -> None:
    service, run_id = trained
    eval_id = service.post_recipe(recipe(model=f"run:{run_id}/last", suites=[SUITE, {**SUITE, "items": 5}]))
    first = service.attempt(eval_id, ScriptedControl(lambda question: "drain" if question > 1 else None))
    assert run_evaluation(first, pool).state == "interrupted"
    with service.db.read() as session:
        newest = checkpoints.latest(session, run_id)
        assert {row.status for row in evaluations.list_for_run(session, eval_id)} == {"finished"}
    service.lost(first)
    with service.db.write() as session:  # as if the run had gone on
        later = type(newest)(
            run_id=run_id, attempt=1, step=9, path="gone", sha256="f" * 64, bytes=1, has_optimizer=True
        )
        later.provenance, later.created_at = {}, newest.created_at
        session.add(later)
    try:
        context = service.attempt(eval_id)
        service.finish(context, run_evaluation(context, pool))
    finally:
        with service.db.write() as session:
            session.delete(session.get(type(newest), later.id))
    with service.db.read() as session:
        rows = evaluations.list_for_run(session, eval_id)
        [pin] = [event.payload for event in events.page(session, eval_id).items if event.type == checkpoints.PINNED]
    assert {row.model_ref for row in rows} == {f"run:{run_id}/step-2"}
    assert (pin["reference"], pin["checkpoint"]) == (f"run:{run_id}/last", newest.id)


def test_a_pinned_checkpoint_that_is_gone_is_named(trained, pool) -> None:
    service, run_id = trained
    eval_id = service.post_recipe(recipe(model=f"run:{run_id}/step-0"))
    first = service.attempt(eval_id, ScriptedControl(lambda _: "drain"))
    run_evaluation(first, pool)
    service.lost(first)
    with service.db.write() as session:
        row = checkpoints.at_step(session, run_id, 0)
        row.deleted_at = 1.0
    context = service.attempt(eval_id)
    try:
        with pytest.raises(UserError, match=f"run:{run_id}/step-0, whose checkpoint was deleted"):
            run_evaluation(context, pool)
    finally:
        service.lost(context)
        with service.db.write() as session:
            checkpoints.by_id(session, row.id).deleted_at = None
            runs.request_cancel(session, eval_id)


def test_held_out_items_that_are_no_longer_the_runs_own_are_refused(trained, pool) -> None:
    service, run_id = trained
    with service.db.write() as session:
        row = prespecs.get(session, runs.get(session, run_id).prespecification_id)
        stated = row.amendments
        [environment] = [one["payload"] for one in stated]
        data = environment["data"] | {"held-out": {"items": 20, "sha256": "0" * 64}}
        row.amendments = [stated[0] | {"payload": environment | {"data": data}}]
    context = service.attempt(service.post_recipe(recipe(model=f"run:{run_id}/last", suites=["holdout"])))
    try:
        with pytest.raises(UserError, match="held-out items") as refused:
            run_evaluation(context, pool)
        assert refused.value.code == "data_changed"
    finally:
        service.lost(context)
        with service.db.write() as session:
            prespecs.get(session, row.id).amendments = stated
            runs.request_cancel(session, context.run_id)


def test_a_card_that_ran_out_of_memory_is_the_users_to_mend(trained, pool, monkeypatch) -> None:
    import torch

    def run_out(*given: Any, **options: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr("core.evals.job.open_for_evaluation", run_out)
    service, _ = trained
    context = service.attempt(service.post_recipe(recipe()))
    with pytest.raises(UserError, match="ran out of memory") as refused:
        run_evaluation(context, pool)
    assert refused.value.code == "out_of_memory"
    service.lost(context)
