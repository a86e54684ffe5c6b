"""The analysis job: every analysis of the recipe over the checkpoints of one train run, each stored as soon as it is done.

A later attempt keeps the analyses that were stored. What is measured lives in the other modules; this one knows the store.
"""

from collections.abc import Sequence
from typing import Any

from core.dynamics.figures import write_figures
from core.dynamics.linearity import weight_linearity
from core.dynamics.nulls import Drive
from core.dynamics.tensor_file import TrajectoryError
from core.dynamics.trajectory import Point, Trajectory
from core.jobs import Outcome, RunContext, UserError
from core.recipes import AnalysisRecipe, TrainRecipe, load_recipe
from core.recipes.analysis import ComputeSpec
from core.rl.schedule import learning_rate
from core.settings import Settings
from core.store import analyses, checkpoints, runs
from core.store.database import Database
from core.store.errors import StoreError
from core.store.models import Checkpoint, Run
from core.store.types import new_id


class _Ended(Exception):  # noqa: N818 - not an error: the run was asked to stop
    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome


def run_analysis(context: RunContext) -> Outcome:
    """Run one attempt of an analysis run to its outcome.

    Raises UserError where the run, its checkpoints or the recipe cannot be analysed: ``unknown_run``, ``not_a_train_run``,
    ``analysis_not_built``, or the code of the :class:`TrajectoryError`.
    """
    recipe = context.recipe
    if not isinstance(recipe, AnalysisRecipe):
        raise TypeError(f"run {context.run_id} is of kind {recipe.kind}, not analysis")
    target = _target(context, recipe)
    try:
        for place, spec in enumerate(recipe.compute):
            if not _stored(context, spec):
                _compute(context, recipe, target, spec, place)
    except _Ended as ended:
        return ended.outcome
    except TrajectoryError as problem:
        raise UserError(problem.code, str(problem)) from problem
    return Outcome("succeeded", f"{len(recipe.compute)} analyses of run {target.id} finished")


def trajectory_points(db: Database, settings: Settings, run_id: str) -> list[Point]:
    """Return the checkpoints of a run's current trajectory, step 0 included.

    A fork that continues its parent's weights begins at the parent's checkpoint.
    """
    with db.read() as session:
        run = runs.get(session, run_id)
        rows = checkpoints.list_(session, run.id)
        if run.parent_id is not None and run.parent_step is not None and (not rows or rows[0].step > run.parent_step):
            start = checkpoints.at_step(session, run.parent_id, run.parent_step)
            rows = [start, *rows] if start is not None else rows
    return [Point(row.step, settings.home / row.path) for row in _newest(rows)]


def _newest(rows: Sequence[Checkpoint]) -> list[Checkpoint]:
    """Keep one row per step, the latest attempt's."""
    return list({row.step: row for row in rows}.values())


def drive_of(recipe: TrainRecipe, last_step: int) -> Drive | None:
    """Return the optimizer and learning rates that drove a run up to ``last_step``; None when it never moved a weight."""
    updates, per_step = last_step * recipe.updates_per_step, recipe.updates_per_step
    total = max(recipe.max_steps * per_step, updates)
    rates = tuple(
        learning_rate(
            recipe.lr_schedule, recipe.learning_rate, update, total=total, warmup=min(recipe.warmup_updates, total)
        )
        for update in range(1, updates + 1)
    )
    if not any(rates):
        return None
    if recipe.optimizer.name == "sgd":
        return Drive("sgd", recipe.optimizer.momentum, 0.0, rates, per_step)
    return Drive("adamw", recipe.adam_beta1, recipe.adam_beta2, rates, per_step)


def _target(context: RunContext, recipe: AnalysisRecipe) -> Run:
    reference = recipe.run.removeprefix("run:")
    try:
        with context.db.read() as session:
            run = runs.get(session, reference)
    except StoreError as problem:
        raise UserError("unknown_run", f"{recipe.run}: {problem}") from problem
    if run.kind != "train":
        raise UserError(
            "not_a_train_run", f"{recipe.run} is of kind {run.kind}; name a train run, which has checkpoints"
        )
    return run


def _stored(context: RunContext, spec: ComputeSpec) -> bool:
    with context.db.read() as session:
        rows = analyses.list_for_run(session, context.run_id)
    return any(row.run_id == context.run_id and (row.name, row.params) == (spec.name, _params(spec)) for row in rows)


def _params(spec: ComputeSpec) -> dict[str, Any]:
    return spec.model_dump(mode="json", exclude={"name"})


def _compute(context: RunContext, recipe: AnalysisRecipe, target: Run, spec: ComputeSpec, place: int) -> None:
    if spec.name != "weight_linearity":
        raise UserError(
            "analysis_not_built", f"compute.{place}: {spec.name} cannot be computed yet; weight_linearity can"
        )
    _proceed(context, spec.name, 0, None)
    points = trajectory_points(context.db, context.settings, target.id)
    trained = load_recipe(target.recipe)
    drive = drive_of(trained, points[-1].step) if points and isinstance(trained, TrainRecipe) else None
    with Trajectory.open(points) as trajectory:
        context.log.info("%s over steps %s of run %s", spec.name, list(trajectory.steps), target.id)
        result = weight_linearity(
            trajectory,
            seed=recipe.seed,
            threshold=spec.threshold,
            sample=spec.sample,
            drive=drive,
            on_tensor=lambda done, total: _proceed(context, spec.name, done, total),
        )
    context.log.info("%s", result["statement"])
    _store(context, target, spec, result)


def _store(context: RunContext, target: Run, spec: ComputeSpec, result: dict[str, Any]) -> None:
    """Write the figures, then the row that names them; a crash between the two leaves files that nobody names."""
    analysis_id = new_id()
    folder = context.settings.analysis_dir(analysis_id)
    folder.mkdir(parents=True)
    figures = write_figures(result, folder)
    with context.db.fenced(context.fence) as session:
        analyses.add(
            session,
            context.fence,
            target_run_id=target.id,
            name=spec.name,
            params=_params(spec),
            result=result,
            figures=figures,
            id=analysis_id,
        )


def _proceed(context: RunContext, phase: str, done: int, total: int | None) -> None:
    """Report progress, and end here when that was asked for: tensors are the safe points of an analysis."""
    with context.db.fenced(context.fence) as session:
        runs.progress(session, context.fence, phase=phase, done=done, total=total, unit="tensors")
    match context.control.requested:
        case "cancel":
            raise _Ended(Outcome("cancelled", "cancelled by request; finished analyses stay"))
        case "pause":
            raise _Ended(Outcome("paused", "paused by request"))
        case "drain":
            raise _Ended(Outcome("interrupted", "the worker is shutting down"))
        case None:
            return
