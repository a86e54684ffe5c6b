"""The jobs that make weights: an analysis ``extrapolate`` or ``export`` of one train run, from its recipe to its results.

Checkpoints are rows of the analysis run, so they can be named, evaluated, trained from and downloaded as any other:
``run:ID/step-N`` is the point of the line at (the whole step nearest to) N. A later attempt keeps what was answered.
"""

import contextlib
import shutil
from contextlib import ExitStack
from typing import Any

import torch

from core.engines.base import EngineError
from core.engines.lines import FolderWeights, distance
from core.engines.models import ModelError
from core.engines.references import ModelSource
from core.jobs import Outcome, RunContext, UserError
from core.recipes import AnalysisRecipe, TrainRecipe, load_recipe
from core.recipes.analysis import ComputeSpec
from core.recipes.weights import Export, Extrapolation, SweepEvaluation
from core.store import analyses, checkpoints, evaluations, runs
from core.store.errors import StoreError
from core.store.models import Run
from core.store.provenance import SOURCE_RUN
from core.store.types import new_id
from core.tasks.items import ItemError
from core.tasks.pool import VerifierPool
from core.train import checkpoints as folders
from core.weights.choice import Point, best, compared, paired_dict, point_of, statement
from core.weights.exports import export
from core.weights.figures import write_sweep
from core.weights.making import Interrupted, Making, add_row, proceed
from core.weights.points import Line, Target, check_names, find_line, targets_of
from core.weights.sweep import CHOOSE, CONFIRM, Draws, Sweep, check_items, draws_of, open_sweep
from core.weights.writing import write_like

NAME = "extrapolate"


def run_weights(context: RunContext, pool: VerifierPool | None = None) -> Outcome:
    """Run one attempt of an analysis that makes weights. ``pool`` stays the caller's; None opens one where it is needed."""
    recipe = context.recipe
    if not isinstance(recipe, AnalysisRecipe):
        raise TypeError(f"run {context.run_id} is of kind {recipe.kind}, not analysis")
    [spec] = recipe.compute
    with context.db.fenced(context.fence) as session:
        evaluations.discard_unfinished(session, context.fence)
    try:
        run, trained = _source(context, recipe)
        making = Making(context, recipe, spec, run, trained)
        if spec.extrapolation is None:
            return export(making, _export_of(spec))
        return _extrapolate(making, spec.extrapolation, pool)
    except Interrupted:
        return _requested(context)
    except ItemError as problem:
        raise UserError("unusable_data", str(problem)) from problem
    except (ModelError, EngineError) as problem:
        raise UserError("unusable_model", str(problem)) from problem
    except folders.DamagedCheckpointError as problem:
        raise UserError("damaged_checkpoint", f"{problem}; name another step") from problem


def _export_of(spec: ComputeSpec) -> Export:
    if spec.export is None:
        raise TypeError(f"a recipe of {spec.name} has its block")
    return spec.export


def _source(context: RunContext, recipe: AnalysisRecipe) -> tuple[Run, TrainRecipe]:
    """The run that the recipe names and the train recipe behind it; what an analysis computed stems from its own run's."""
    try:
        with context.db.read() as session:
            run = runs.get(session, (recipe.run or "").removeprefix("run:"))
            trained = load_recipe(run.recipe)
            if isinstance(trained, AnalysisRecipe) and trained.run and recipe.compute[0].export is not None:
                trained = load_recipe(runs.get(session, trained.run.removeprefix("run:")).recipe)
    except StoreError as problem:
        raise UserError("unknown_run", f"{recipe.run}: {problem}") from problem
    if not isinstance(trained, TrainRecipe):
        raise UserError(
            "not_a_train_run", f"{recipe.run} is of kind {run.kind}; name a train run, which has checkpoints"
        )
    return run, trained


def _extrapolate(making: Making, block: Extrapolation, pool: VerifierPool | None) -> Outcome:
    context, run = making.context, making.run
    with context.db.read() as session:
        line = find_line(session, context.settings.home, run, block)
    for anchor in line.anchors:
        folders.verify_checkpoint(anchor.folder)
    targets = targets_of(line, block)
    if block.keep == "all":
        check_names(targets)
    result: dict[str, Any] = {
        "a": line.a.as_dict(),
        "b": line.b.as_dict(),
        "fit": line.fit,
        "skip_norms": line.skip_norms,
        "anchors": [one.as_dict() for one in line.anchors],
        "distance": _distance(line),
        "points": [{"beta": one.beta, "target_step": one.step} for one in targets],
    }
    if block.evaluate is not None:
        with contextlib.nullcontext(pool) if pool else VerifierPool() as grading:
            result |= _swept(making, line, targets, block.evaluate, grading)
    kept = _kept(block, targets, result)
    result["checkpoints"] = [_write(context, line, target, run) for target in kept]
    result["statement"] = statement(result)
    context.log.info("%s", result["statement"])
    _store(context, making.spec, run, result)
    return Outcome("succeeded", result["statement"])


def _distance(line: Line) -> float:
    with FolderWeights(line.a.folder) as start, FolderWeights(line.b.folder) as end:
        return distance(start, end)


def _swept(
    making: Making, line: Line, targets: list[Target], block: SweepEvaluation, pool: VerifierPool
) -> dict[str, Any]:
    """Evaluate every point and b itself, choose, and confirm the choice against b and the run's best look."""
    context, run, trained, seed = making.context, making.run, making.trained, making.recipe.seed
    source = ModelSource(line.b.folder, f"run:{run.id}/step-{line.b.step}", line.b.sha256, run.id)
    draws = draws_of(context, block, trained, source, seed)
    sweep = open_sweep(context, line, block, trained, pool=pool, seed=seed)
    try:
        check_items(draws, sweep.evaluator, trained.max_prompt_length, pool)
        whole = sorted({*targets, Target(1.0, float(line.b.step))}, key=lambda one: one.beta)
        points = [point_of(target, sweep.ask(target, CHOOSE, draws.choose)) for target in whole]
        chosen = best(points)
        confirmed = _confirm(sweep, draws, chosen, run) if chosen.target.beta != 1 else None
    finally:
        sweep.close()
    return {
        "points": [point.as_dict() for point in points],
        "chosen": chosen.as_dict(),
        "confirmed": confirmed,
        "items": {"choose": len(draws.choose), "confirm": len(draws.confirm)},
    }


def _confirm(sweep: Sweep, draws: Draws, chosen: Point, run: Run) -> dict[str, Any]:
    context, later = sweep.context, Target(1.0, float(sweep.line.b.step))
    after = sweep.ask(chosen.target, CONFIRM, draws.confirm) or {}
    found = {"b": paired_dict(compared(sweep.ask(later, CONFIRM, draws.confirm) or {}, after))}
    with context.db.read() as session:
        row = checkpoints.best(session, run.id)
    if row is not None and row.step != sweep.line.b.step:
        scores = sweep.ask_folder(f"step-{row.step}", context.settings.home / row.path, CONFIRM, draws.confirm)
        found |= {"best": paired_dict(compared(scores or {}, after)), "best_step": {"step": row.step}}
    return found


def _kept(block: Extrapolation, targets: list[Target], result: dict[str, Any]) -> list[Target]:
    if block.keep == "all":
        return targets
    beta = result["chosen"]["beta"]
    return [target for target in targets if target.beta == beta]


def _write(context: RunContext, line: Line, target: Target, run: Run) -> dict[str, Any]:
    """Write one point as a checkpoint of this run, unless an earlier attempt did; return how to name it."""
    step = target.row_step
    with context.db.read() as session:
        row = checkpoints.at_step(session, context.run_id, step)
    if row is None:
        directory = context.settings.checkpoint_dir(context.run_id, context.attempt, step)
        shutil.rmtree(directory, ignore_errors=True)
        with ExitStack() as stack:
            written = write_like(
                directory,
                line.at(target, stack),
                line.b.folder,
                dtype=torch.float32,
                step=step,
                on_tensor=lambda done, total: proceed(context, f"write beta {target.beta:g}", done, total),
            )
        provenance = {"kind": NAME, SOURCE_RUN: run.id, "run": context.run_id} | line.provenance(target)
        row = add_row(context, written, provenance)
    return {"reference": f"run:{context.run_id}/step-{step}", "id": row.id, "beta": target.beta, "sha256": row.sha256}


def _store(context: RunContext, spec: ComputeSpec, run: Run, result: dict[str, Any]) -> None:
    """Write the figure, then the row that names it; a crash between the two leaves files that nobody names."""
    analysis_id = new_id()
    folder = context.settings.analysis_dir(analysis_id)
    folder.mkdir(parents=True)
    figures = write_sweep(result, folder)
    with context.db.fenced(context.fence) as session:
        analyses.add(
            session,
            context.fence,
            target_run_id=run.id,
            name=spec.name,
            params=spec.model_dump(mode="json", exclude={"name"}),
            result=result,
            figures=figures,
            id=analysis_id,
        )


def _requested(context: RunContext) -> Outcome:
    match context.control.requested:
        case "cancel":
            return Outcome("cancelled", "cancelled by request; what was written stays")
        case "pause":
            return Outcome("paused", "paused by request")
        case _:
            return Outcome("interrupted", "the worker is shutting down")
