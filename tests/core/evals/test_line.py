"""Evaluation runs on the line through two checkpoints' logits, on a tiny model through the real store."""

from collections.abc import Iterator
from typing import Any

import pytest

from core.evals.comparison import paired_items
from core.evals.job import run_evaluation
from core.jobs import UserError
from core.planning.cost import eval_samples
from core.recipes import EvalRecipe, parse_recipe
from core.store import checkpoints, evaluations, runs
from core.tasks.pool import VerifierPool
from core.train.loop import run_training
from tests.core.train.service import ScriptedControl, Service

SUITE = {
    "suite": "reasoning_gym:chain_sum",
    "items": 6,
    "options": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1, "size": 50},
}
SAMPLED = {**SUITE, "n": 2}


@pytest.fixture(scope="module")
def pool() -> Iterator[VerifierPool]:
    with VerifierPool(workers=1) as shared:
        yield shared


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, pool: VerifierPool) -> tuple[Service, str]:
    service = Service(tmp_path_factory.mktemp("line"))
    # Steps large enough that a and b answer differently.
    run_id = service.post(max_steps=2, looks=None, damage_stop=None, learning_rate=0.03)
    context = service.attempt(run_id)
    service.finish(context, run_training(context, pool))
    return service, run_id


def recipe(run_id: str, alpha: Any, **changes: Any) -> dict[str, Any]:
    return {
        "kind": "eval",
        "extrapolation": {"a": f"run:{run_id}/step-0", "b": f"run:{run_id}/step-2", "alpha": alpha},
        "suites": [SUITE, SAMPLED],
        "max_prompt_length": 200,
        "max_completion_length": 8,
        "engine": "transformers",
        "device": {"kind": "cpu", "memory_gib": 4},
    } | changes


def _tokens(service: Service, row: Any) -> list[Any]:
    with service.db.read() as session:
        records = evaluations.records_after(session, row.id, None, 1000)
    return [(record.item_id, record.sample, record.token_ids) for record in records]


@pytest.fixture(scope="module")
def swept(trained: tuple[Service, str], pool: VerifierPool) -> tuple[Service, str, list[Any]]:
    """One sweep over alpha, the earlier checkpoint asked beside it."""
    service, run_id = trained
    eval_id = service.post_recipe(recipe(run_id, [0, 1, 2.5], against=[f"run:{run_id}/step-0"]))
    outcome = run_evaluation(service.attempt(eval_id), pool)
    assert (outcome.state, outcome.reason) == ("succeeded", "14 evaluations finished")
    with service.db.read() as session:
        return service, run_id, list(evaluations.list_for_run(session, eval_id))


def test_a_sweep_asks_every_alpha_the_checkpoints_and_the_later_ones_temperatures(
    swept: tuple[Service, str, list[Any]],
) -> None:
    _, run_id, rows = swept
    a, b = f"run:{run_id}/step-0", f"run:{run_id}/step-2"
    asked = [(row.model_ref, row.mode, row.params["temperature"]) for row in rows]
    assert asked == [
        (b, "greedy", 0.0),
        (b, "sampled", 0.6),
        *[(b, "sampled", temperature) for temperature in (0.2, 0.4, 0.8, 1.0)],
        (a, "greedy", 0.0),
        (a, "sampled", 0.6),
        *[
            (f"lerp({a},{b},{alpha})", mode, temperature)
            for alpha in ("0", "1", "2.5")
            for mode, temperature in (("greedy", 0.0), ("sampled", 0.6))
        ],
    ]


def test_alpha_0_and_1_answer_token_for_token_as_the_checkpoints(swept: tuple[Service, str, list[Any]]) -> None:
    service, run_id, rows = swept
    a, b = f"run:{run_id}/step-0", f"run:{run_id}/step-2"
    for mode in ("greedy", "sampled"):
        found = {row.model_ref: row for row in rows if row.mode == mode and row.params["temperature"] in (0.0, 0.6)}
        tokens = {name: _tokens(service, row) for name, row in found.items()}
        assert tokens[f"lerp({a},{b},0)"] == tokens[a]
        assert tokens[f"lerp({a},{b},1)"] == tokens[b]
        assert len({str(answers) for answers in tokens.values()}) == 3  # a, b, and what lies beyond b


def test_the_record_says_which_weights_were_combined_and_where(swept: tuple[Service, str, list[Any]]) -> None:
    _, run_id, rows = swept
    checkpoints = {row.model_ref: row.checkpoint_sha256 for row in rows if row.model_ref.startswith("run:")}
    beyond = next(row for row in rows if row.model_ref.endswith(",2.5)"))
    assert beyond.checkpoint_sha256 is None
    assert beyond.engine["extrapolation"] == {
        "a": f"run:{run_id}/step-0",
        "a_sha256": checkpoints[f"run:{run_id}/step-0"],
        "b": f"run:{run_id}/step-2",
        "b_sha256": checkpoints[f"run:{run_id}/step-2"],
        "alpha": 2.5,
    }


def test_any_two_arms_hold_the_same_items_and_can_be_paired(swept: tuple[Service, str, list[Any]]) -> None:
    service, _, rows = swept
    with service.db.read() as session:
        scores = [
            {item: float(found[0] == "correct") for item, found in evaluations.verdicts(session, row.id).items()}
            for row in rows
        ]
    assert all(paired_items(scores[0], other).n == 6 for other in scores)


def test_the_number_of_completions_is_planned_as_it_comes_out(swept: tuple[Service, str, list[Any]]) -> None:
    _, run_id, rows = swept
    planned = parse_recipe(recipe(run_id, [0, 1, 2.5], against=[f"run:{run_id}/step-0"]))
    assert isinstance(planned, EvalRecipe)
    assert eval_samples(planned, {SUITE["suite"]: 50}) == sum(row.n_items * row.samples for row in rows)


def test_an_interrupted_sweep_goes_on_where_it_was(trained: tuple[Service, str], pool: VerifierPool) -> None:
    service, run_id = trained
    eval_id = service.post_recipe(recipe(run_id, [2, 3], suites=[SUITE], batch_size=3))
    # Two batches an evaluation: b, alpha 2, and the first batch of alpha 3.
    drained = ScriptedControl(lambda question: "drain" if question > 5 else None)
    context = service.attempt(eval_id, drained)
    assert run_evaluation(context, pool).state == "interrupted"
    with service.db.read() as session:
        before = [row.id for row in evaluations.list_for_run(session, eval_id)]
    assert not list(service.settings.run_dir(eval_id).glob("line-*"))
    service.lost(context)
    assert run_evaluation(service.attempt(eval_id), pool).state == "succeeded"
    with service.db.read() as session:
        rows = evaluations.list_for_run(session, eval_id)
    assert [row.id for row in rows][: len(before)] == before
    assert [row.model_ref.rpartition(",")[2] for row in rows[1:]] == ["2)", "3)"]


def test_two_names_of_one_checkpoint_are_no_line(trained: tuple[Service, str], pool: VerifierPool) -> None:
    service, run_id = trained
    line = {"a": f"run:{run_id}/step-2", "b": f"run:{run_id}/last", "alpha": 2}
    eval_id = service.post_recipe(recipe(run_id, 2, suites=[SUITE], extrapolation=line))
    context = service.attempt(eval_id)
    with pytest.raises(UserError, match=r"both mean run:\w+/step-2"):
        run_evaluation(context, pool)
    service.lost(context)


def test_retention_spares_both_ends_of_a_line_that_waits(trained: tuple[Service, str]) -> None:
    service, run_id = trained
    eval_id = service.post_recipe(recipe(run_id, 2))
    with service.db.read() as session:
        assert checkpoints.steps_in_use(session, run_id) >= {0, 2}
    with service.db.write() as session:
        runs.request_cancel(session, eval_id)
