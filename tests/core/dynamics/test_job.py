"""The analysis job through the real store: results, figures, progress, requests, and refusals."""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from pyarrow import parquet

from core.dynamics.figures import plotly_figures, write_figures
from core.dynamics.job import run_analysis
from core.dynamics.target import drive_of, trajectory_points
from core.jobs import UserError
from core.recipes import family_hash, load_recipe, parse_recipe, recipe_hash, resolved
from core.store import analyses, checkpoints, queue, runs
from core.train.loop import run_training
from tests.core.dynamics.folders import walk, write_folder
from tests.core.train.service import ScriptedControl, Service

STEPS = [0, 2, 4, 6, 8]


@pytest.fixture
def service(tmp_path: Path) -> Service:
    return Service(tmp_path)


def trained(service, *, steps=STEPS, drift=1e-3, **changes):
    """A finished train run with sealed checkpoints of small tensors."""
    run_id = service.post(**changes)
    context = service.attempt(run_id)
    for step, weights in zip(steps, walk(steps, drift=drift, noise=1e-4), strict=True):
        save(service, context, step, weights)
    with service.db.fenced(context.fence) as session:
        queue.finish(session, context.fence, state="succeeded")
    return run_id


def save(service, context, step, weights):
    folder = service.settings.checkpoint_dir(context.run_id, context.attempt, step)
    write_folder(folder, weights, step=step)
    with service.db.fenced(context.fence) as session:
        checkpoints.add(
            session, context.fence, step=step, path=str(folder.relative_to(service.settings.home)), sha256=f"{step:064x}",
            files={}, bytes=1, has_optimizer=False, provenance={},
        )  # fmt: skip


def asked(service, target, control=None, **changes):
    """An attempt at a new analysis run of ``target``."""
    submitted = {"kind": "analysis", "run": f"run:{target}", "compute": ["weight_linearity"], "seed": 4} | changes
    recipe = parse_recipe(submitted)
    with service.db.write() as session:
        run = runs.create(
            session, recipe=resolved(recipe), submitted=submitted, recipe_hash=recipe_hash(recipe),
            family_hash=family_hash(recipe), model=None, name="test", kind="analysis",
        )  # fmt: skip
    return service.attempt(run.id, control)


def results(service, target):
    with service.db.read() as session:
        return analyses.list_for_run(session, target)


@pytest.fixture(scope="module")
def analysed(tmp_path_factory):
    """A service with one finished analysis: (service, target, context, row)."""
    service = Service(tmp_path_factory.mktemp("analysed"))
    target = trained(service)
    context = asked(service, target[:8])
    assert run_analysis(context).state == "succeeded"
    (row,) = results(service, target)
    return service, target, context, row


def test_an_analysis_is_stored_with_its_figures_and_progress(analysed):
    service, target, context, row = analysed
    assert (row.name, row.target_run_id, row.run_id) == ("weight_linearity", target, context.run_id)
    assert row.params == {"sample": None, "threshold": 0.7, "probe": None, "dtype": "float32", "groups": 16}
    assert row.result["trajectory"]["steps"] == STEPS
    assert row.result["r2"]["share_above"] > 0.9
    assert row.result["excess"]["over"] == "driven"
    assert row.result["statement"].startswith("Excess over chance")
    folder = service.settings.analysis_dir(row.id)
    assert sorted(path.name for path in folder.iterdir()) == sorted([*row.figures, *row.result["tables"]])
    table = parquet.read_table(folder / "tensors.parquet").to_pylist()
    assert [one["name"] for one in table] == [one["name"] for one in row.result["tensors"]]
    assert table[0]["mean"] == row.result["tensors"][0]["mean"]
    assert {Path(name).suffix for name in row.figures} == {".json", ".png", ".svg"}
    for name in row.figures:
        content = (folder / name).read_bytes()
        if name.endswith(".json"):
            assert json.loads(content)["data"]
        else:
            assert content.startswith((b"\x89PNG", b"<?xml"))
    with service.db.read() as session:
        run = runs.get(session, context.run_id)
    assert (run.phase, run.progress_done, run.progress_total, run.progress_unit) == (
        "weight_linearity",
        6,
        6,
        "tensors",
    )


def test_figures_are_the_stored_numbers_and_nothing_else(analysed, tmp_path):
    service, _, _, row = analysed
    again = tmp_path / "again"
    again.mkdir()
    assert write_figures(row.result, again) == row.figures
    for name in row.figures:
        assert (again / name).read_bytes() == (service.settings.analysis_dir(row.id) / name).read_bytes(), name
    histogram = plotly_figures(row.result)["r2-histogram"]
    assert [trace["name"] for trace in histogram["data"]] == ["weights", "random walk", "walk driven by this optimizer"]
    assert sum(histogram["data"][0]["y"]) == pytest.approx(1)
    heat = plotly_figures(row.result)["layer-heat-map"]["data"][0]
    assert heat["z"] == row.result["heat_map"]["mean_r2"]


def test_a_later_attempt_keeps_what_was_stored(service, monkeypatch):
    monkeypatch.setattr("core.dynamics.job.write_figures", lambda result, folder: [])
    target = trained(service)
    two = ["weight_linearity", {"name": "weight_linearity", "threshold": 0.9}]
    # Questions: one before each analysis and one after each of the six tensors.
    context = asked(service, target, ScriptedControl(lambda question: "drain" if question == 8 else None), compute=two)
    assert run_analysis(context).state == "interrupted"
    assert [row.params["threshold"] for row in results(service, target)] == [0.7]
    service.lost(context)
    assert run_analysis(service.attempt(context.run_id)).state == "succeeded"
    assert [row.params["threshold"] for row in results(service, target)] == [0.7, 0.9]


@pytest.mark.parametrize(("request_", "state"), [("cancel", "cancelled"), ("pause", "paused")])
def test_a_request_is_obeyed_between_tensors(service, request_, state):
    target = trained(service)
    control = ScriptedControl(lambda question: request_ if question == 3 else None)
    assert run_analysis(asked(service, target, control)).state == state
    assert control.asked == 3
    assert results(service, target) == []


def refused(service, code, target, **changes):
    with pytest.raises(UserError) as caught:
        run_analysis(asked(service, target, **changes))
    assert caught.value.code == code, caught.value.message
    return caught.value.message


def test_what_cannot_be_analysed_is_refused(service):
    target = trained(service)
    assert "no run" in refused(service, "unknown_run", "0" * 12)
    other = asked(service, target)
    with service.db.fenced(other.fence) as session:
        queue.finish(session, other.fence, state="cancelled")
    assert "of kind analysis" in refused(service, "not_a_train_run", other.run_id)


def test_too_few_checkpoints_are_refused_with_advice(service):
    message = refused(service, "too_few_checkpoints", trained(service, steps=[0, 2, 4]))
    assert "steps: 0, 2, 4" in message
    assert "save.every" in message


def test_a_damaged_checkpoint_is_refused_by_name(service):
    target = trained(service)
    file = service.settings.checkpoint_dir(target, 1, 4) / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-3] ^= 8
    file.write_bytes(bytes(data))
    assert "attempt-1-step-4/model.safetensors" in refused(service, "damaged_checkpoint", target)


def test_a_missing_checkpoint_is_refused_by_name(service):
    target = trained(service)
    folder = service.settings.checkpoint_dir(target, 1, 6)
    folder.rename(folder.with_name("gone"))
    assert "attempt-1-step-6" in refused(service, "missing_checkpoint", target)


def test_a_fork_begins_at_its_parents_checkpoint(service):
    parent = trained(service)
    run_id = service.post(seed=6)
    context = service.attempt(run_id)
    with service.db.write() as session:
        run = runs.get(session, run_id)
        run.parent_id, run.parent_step = parent, 4
    save(service, context, 6, walk([0], drift=0, noise=0)[0])
    points = trajectory_points(service.db, service.settings, run_id)
    assert [point.step for point in points] == [4, 6]
    assert points[0].folder == service.settings.checkpoint_dir(parent, 1, 4)


def test_the_drive_is_the_recipes_optimizer_and_schedule(service):
    def recipe(**changes):
        with service.db.read() as session:
            return load_recipe(runs.get(session, service.post(**changes)).recipe)

    linear = drive_of(recipe(lr_schedule="linear", learning_rate=0.6, max_steps=6, adam_beta2=0.95), last_step=4)
    assert (linear.optimizer, linear.beta1, linear.beta2, linear.updates_per_step) == ("adamw", 0.9, 0.95, 1)
    np.testing.assert_allclose(linear.rates, [0.6, 0.5, 0.4, 0.3])
    sgd = drive_of(recipe(optimizer={"name": "sgd", "momentum": 0.5}, prompts_per_update=1), last_step=2)
    assert (sgd.optimizer, sgd.beta1, sgd.updates_per_step, len(sgd.rates)) == ("sgd", 0.5, 3, 6)
    assert drive_of(recipe(learning_rate=0), last_step=4) is None


@pytest.mark.slow
def test_a_real_training_on_random_rewards_is_chance_to_the_walk_of_its_optimizer(service):
    """The trainer's own optimizer and checkpoints: a plain walk would call this run linear, the driven one does not."""
    run_id = service.post(
        rewards={"random": 1.0},
        max_steps=13,
        save={"every": 1, "optimizer": False},
        looks=False,
        damage_stop=False,
        learning_rate=0.001,
    )
    context = service.attempt(run_id)
    assert run_training(context).state == "succeeded"
    with service.db.fenced(context.fence) as session:
        queue.finish(session, context.fence, state="succeeded")
    run_analysis(asked(service, run_id))
    (row,) = results(service, run_id)
    share, band = row.result["r2"]["share_above"], row.result["chance_band"]
    assert row.result["trajectory"]["steps"] == list(range(14))
    assert share - row.result["nulls"]["plain"]["share_above"] > 0.15
    assert band["low"] < share < band["high"]
    assert "no linearity beyond chance" in row.result["statement"]


def elsewhere(service, weights, *, folder="mine", names=lambda step: f"global_step_{step}"):
    """Checkpoints in the operator's model folder that no run made."""
    for step, one in zip(STEPS, weights, strict=True):
        write_folder(service.settings.models_dir / folder / names(step), one)


def test_a_folder_of_checkpoints_is_analysed_by_the_steps_in_its_names(service):
    elsewhere(service, walk(STEPS, drift=1e-3, noise=1e-4))
    context = asked(service, "", run=None, checkpoints="mine", driven_by={"optimizer": "sgd", "momentum": 0.9})
    assert run_analysis(context).state == "succeeded"
    (row,) = results(service, context.run_id)
    assert row.target_run_id == context.run_id
    assert row.result["trajectory"]["steps"] == STEPS
    assert row.result["driven_by"]["optimizer"] == "sgd"
    assert row.result["r2"]["share_above"] > 0.9


def test_wrong_folders_are_refused_by_name(service):
    elsewhere(service, walk(STEPS, drift=1e-3, noise=1e-4))
    root = service.settings.models_dir / "mine"
    steps = {f"global_step_{step}": step for step in STEPS}
    ask = partial(refused, service, "unusable_checkpoints", "", run=None)
    assert "'other'" in ask(checkpoints="other")
    swapped = {"global_step_0": 3, "global_step_2": 2, "global_step_4": 3, "global_step_6": 6}
    assert "steps must increase" in ask(checkpoints={"folder": "mine", "steps": swapped})
    assert "at least 4" in ask(checkpoints={"folder": "mine", "steps": dict(list(steps.items())[:3])})
    (root / "base").mkdir()
    assert "'base'" in ask(checkpoints="mine")
    (root / "global_step_4" / "model.safetensors").unlink()
    assert "mine/global_step_4" in ask(checkpoints={"folder": "mine", "steps": steps})
