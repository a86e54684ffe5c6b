"""Extrapolation of a tiny run through the real store: exact anchors, named points, a sweep that chooses and confirms."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from core.engines.lines import FolderWeights
from core.engines.models import ModelError, load_model, weights_sha256
from core.engines.references import find_checkpoint, find_model
from core.evals.job import run_evaluation
from core.jobs import UserError
from core.recipes import load_recipe
from core.store import analyses, checkpoints, evaluations, runs
from core.tasks.pool import VerifierPool
from core.train.checkpoints import verify_checkpoint
from core.weights.job import run_weights
from core.weights.points import Target, find_line, targets_of
from tests.core.train.service import ScriptedControl, Service
from tests.core.train.test_resume import trained


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, pool: VerifierPool) -> tuple[Service, str]:
    """A run with checkpoints of steps 0 to 4 and a look at the last."""
    service = Service(tmp_path_factory.mktemp("weights"))
    looks = {"every": 2, "m": 10, "base_runs": 2}
    return service, trained(service, pool, max_steps=4, save={"every": 1}, looks=looks, damage_stop=None)


def post(service: Service, run_id: str, **block: Any) -> str:
    compute = [{"name": "extrapolate", "extrapolation": block}]
    return service.post_recipe({"kind": "analysis", "run": f"run:{run_id}", "compute": compute})


def done(service: Service, run_id: str, pool: VerifierPool, **block: Any) -> tuple[str, dict[str, Any]]:
    made = post(service, run_id, **block)
    context = service.attempt(made)
    service.finish(context, run_weights(context, pool))
    with service.db.read() as session:
        [row] = analyses.list_for_run(session, made)
    return made, row.result


def folder_of(service: Service, run_id: str, step: int) -> Path:
    with service.db.read() as session:
        return service.settings.home / checkpoints.at_step(session, run_id, step).path


def test_points_are_checkpoints_with_provenance_exact_at_the_anchors(home: Any, pool: VerifierPool) -> None:
    service, run_id = home
    made, result = done(service, run_id, pool, a=1, b=3, target_steps=[1, 3, 5], evaluate=False)
    assert [one["reference"] for one in result["checkpoints"]] == [f"run:{made}/step-{step}" for step in (1, 3, 5)]
    with service.db.read() as session:
        source = {row.step: row.sha256 for row in checkpoints.list_(session, run_id)}
        rows = {row.step: row for row in checkpoints.list_(session, made)}
    assert (rows[1].sha256, rows[3].sha256) == (source[1], source[3])
    start, end = (load_file(folder_of(service, run_id, step) / "model.safetensors") for step in (1, 3))
    for name, tensor in load_file(folder_of(service, made, 5) / "model.safetensors").items():
        expected = start[name].double() + 2 * (end[name].double() - start[name].double())
        torch.testing.assert_close(tensor.double(), expected, rtol=3e-7, atol=1e-8)
    told = rows[5].provenance
    assert (told["source_run"], told["beta"], told["target_step"], told["fit"]) == (run_id, 2.0, 5, "two_point")
    assert [one["sha256"] for one in told["anchors"]] == [source[1], source[3]]
    assert verify_checkpoint(folder_of(service, made, 5)) == rows[5].sha256
    model = load_model(folder_of(service, made, 5), torch.float32, "cpu")
    assert weights_sha256(dict(model.named_parameters())) == rows[5].sha256


def test_a_computed_checkpoint_is_evaluated_on_the_items_that_its_run_held_out(home: Any, pool: VerifierPool) -> None:
    service, run_id = home
    made, _ = done(service, run_id, pool, betas=[2.0], evaluate=False)
    last = f"run:{made}/last"
    evaluated = service.post_recipe(
        {
            "kind": "eval",
            "model": last,
            "against": ["base"],
            "suites": ["holdout"],
            "max_completion_length": 8,
            "max_prompt_length": 200,
            "device": {"kind": "cpu"},
        }
    )
    context = service.attempt(evaluated)
    outcome = run_evaluation(context, pool)
    assert outcome.state == "succeeded", outcome
    with service.db.read() as session:
        rows = evaluations.list_for_run(session, evaluated)
    assert {(row.model_ref, row.n_items) for row in rows} == {(f"run:{made}/step-7", 20), ("tiny", 20)}
    assert find_model(service.db, service.settings, context.fence, last).run_id == run_id


def test_training_can_begin_with_a_computed_checkpoint(home: Any, pool: VerifierPool) -> None:
    service, run_id = home
    made, _ = done(service, run_id, pool, betas=[1.5], evaluate=False)
    child = trained(service, pool, model=f"run:{made}/last", max_steps=1, looks=None, damage_stop=None)
    with service.db.read() as session:
        assert checkpoints.at_step(session, child, 0).sha256 == checkpoints.latest(session, made).sha256


def test_a_sweep_chooses_on_one_half_and_confirms_on_the_other(home: Any, pool: VerifierPool) -> None:
    service, run_id = home
    made, result = done(service, run_id, pool, betas=[2.0, 400.0])
    assert [point["beta"] for point in result["points"]] == [1.0, 2.0, 400.0]
    assert result["items"] == {"choose": 10, "confirm": 10}
    with service.db.read() as session:
        asked = evaluations.list_for_run(session, made)
        items = {
            purpose: {item for row in asked if row.purpose == purpose for item in evaluations.verdicts(session, row.id)}
            for purpose in ("candidate", "confirm")
        }
        [row] = analyses.list_for_run(session, made)
        written = [one.step for one in checkpoints.list_(session, made)]
    assert len(items["candidate"]) == 10
    assert not items["candidate"] & items["confirm"]
    best = max(result["points"], key=lambda point: (point["accuracy"], -point["beta"]))
    assert result["chosen"] == best
    assert written == ([] if best["beta"] == 1 else [round(best["target_step"])])
    assert row.figures == ["beta-sweep.json", "beta-sweep.png", "beta-sweep.svg"]
    folder = service.settings.analysis_dir(row.id)
    drawn = json.loads((folder / "beta-sweep.json").read_text())
    assert drawn["data"][0]["x"] == [1.0, 2.0, 400.0]


def test_the_live_model_answers_as_the_written_checkpoint_does(home: Any, pool: VerifierPool) -> None:
    """beta 1 is the last checkpoint: its answers in the sweep are those of the run's own look there, item by item."""
    service, run_id = home
    made, _ = done(service, run_id, pool, betas=[2.0], keep="all")
    with service.db.read() as session:
        [swept] = [row for row in evaluations.list_for_run(session, made) if row.model_ref.endswith("beta-1")][:1]
        found = evaluations.verdicts(session, swept.id)
        [base] = [row for row in evaluations.list_for_run(session, run_id, purpose="look") if row.step == 4]
        looked = evaluations.verdicts(session, base.id)
    shared = found.keys() & looked.keys()
    assert shared
    assert {item: found[item] for item in shared} == {item: looked[item] for item in shared}


def test_an_interrupted_sweep_goes_on_where_it_was(home: Any, pool: VerifierPool) -> None:
    service, run_id = home
    _, expected = done(service, run_id, pool, betas=[2.0, 3.0], keep="all")
    made = post(service, run_id, betas=[2.0, 3.0], keep="all")
    context = service.attempt(made, ScriptedControl(lambda question: "drain" if question > 2 else None))
    assert run_weights(context, pool).state == "interrupted"
    service.lost(context)
    context = service.attempt(made)
    service.finish(context, run_weights(context, pool))
    with service.db.read() as session:
        [row] = analyses.list_for_run(session, made)
        names = [
            one.model_ref.partition("/")[2] for one in evaluations.list_for_run(session, made, purpose="candidate")
        ]
    assert sorted(names) == ["beta-1", "beta-2", "beta-3"]
    assert row.result["points"] == expected["points"]
    assert [one["sha256"] for one in row.result["checkpoints"]] == [one["sha256"] for one in expected["checkpoints"]]


def test_the_papers_guidelines_are_the_defaults(home: Any) -> None:
    service, run_id = home
    recipe = load_recipe({"kind": "analysis", "run": f"run:{run_id}", "compute": ["extrapolate"]})
    block = recipe.compute[0].extrapolation
    with service.db.read() as session:
        line = find_line(session, service.settings.home, runs.get(session, run_id), block)
    assert (line.a.step, line.b.step) == (1, 4)
    assert targets_of(line, block) == [Target(1.25, 4.75), Target(1.5, 5.5), Target(2.0, 7.0), Target(3.0, 10.0)]


def test_least_squares_goes_through_every_checkpoint_between(home: Any, pool: VerifierPool) -> None:
    service, run_id = home
    made, result = done(service, run_id, pool, a=0, b=4, target_steps=[6], fit="least_squares", evaluate=False)
    assert [one["step"] for one in result["anchors"]] == [0, 1, 2, 3, 4]
    with FolderWeights(folder_of(service, made, 6)) as written:
        name = "model.embed_tokens.weight"
        points = []
        for step in range(5):
            with FolderWeights(folder_of(service, run_id, step)) as one:
                points.append(one[name].double())
    shares = [0.2 + (6 - 2) * (step - 2) / 10 for step in range(5)]
    expected = sum(share * point for share, point in zip(shares, points, strict=True))
    with FolderWeights(folder_of(service, made, 6)) as written:
        torch.testing.assert_close(written[name].double(), expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(
    ("block", "code"),
    [
        ({"a": 9}, "unknown_checkpoint"),
        ({"a": 4, "b": 4, "betas": [2.0]}, "no_line"),
        ({"a": 0, "b": 1, "betas": [2.0, 2.2], "evaluate": False}, "points_too_near"),
        ({"evaluate": {"suite": "holdout", "items": 20}}, "too_few_items"),
    ],
)
def test_what_cannot_be_done_is_said(home: Any, pool: VerifierPool, block: dict[str, Any], code: str) -> None:
    service, run_id = home
    if block.get("a") == 4:
        compute = {"name": "extrapolate", "extrapolation": {"b": 4, "betas": [2.0]}}
        made = service.post_recipe({"kind": "analysis", "run": f"run:{run_id}", "compute": [compute]})
        context = service.attempt(made)
        object.__setattr__(context.recipe.compute[0].extrapolation, "a", 4)
    else:
        context = service.attempt(post(service, run_id, **block))
    with pytest.raises(UserError) as refused:
        run_weights(context, pool)
    assert refused.value.code == code
    service.lost(context)
    with service.db.write() as session:
        runs.request_cancel(session, context.run_id)


def test_a_point_that_was_not_written_is_not_there(home: Any, pool: VerifierPool) -> None:
    service, run_id = home
    made, _ = done(service, run_id, pool, betas=[2.0], evaluate=False)
    with service.db.read() as session, pytest.raises(ModelError, match="has checkpoints of steps 7"):
        find_checkpoint(session, f"run:{made}/step-8")
