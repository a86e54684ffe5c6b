"""What an analysis recipe is about: checkpoints in order, the optimizer that made them, and how their prompts are written.

Either a train run's checkpoints from the store, or folders and models from elsewhere. Nothing is read but names and rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from core.dynamics.nulls import Drive
from core.dynamics.tensor_file import TrajectoryError
from core.dynamics.trajectory import Jumped, Point
from core.engines.lines import is_norm
from core.engines.models import ModelError
from core.engines.references import find_model
from core.jobs import RunContext, UserError
from core.recipes import AnalysisRecipe, RecipeError, TrainRecipe, load_recipe
from core.recipes.analysis import DrivenBy
from core.recipes.base import Prompt
from core.recipes.trajectories import locate
from core.rl.schedule import Schedule, learning_rate
from core.settings import Settings
from core.store import checkpoints, events, runs
from core.store.database import Database
from core.store.errors import StoreError
from core.store.models import Checkpoint, Run

JUMP = "jump"  # the event of a re-grounding run


@dataclass(frozen=True)
class Target:
    """The subject of an analysis. ``trained`` is the recipe of the train run, None for checkpoints from elsewhere.

    ``run_id`` is the run that results are filed under: the train run, or the analysis itself.
    """

    run_id: str
    label: str
    points: tuple[Point, ...]
    drive: Drive | None
    trained: TrainRecipe | None
    prompt: Prompt


def find_target(context: RunContext, recipe: AnalysisRecipe) -> Target:
    """Return what ``recipe`` analyses; raises :class:`UserError` where there is no such thing."""
    if recipe.checkpoints is not None:
        return _elsewhere(context, recipe)
    run = _train_run(context, recipe.run or "")
    trained = load_recipe(run.recipe)
    if not isinstance(trained, TrainRecipe):
        raise TypeError(f"run {run.id} is a train run without a train recipe")
    points = tuple(trajectory_points(context.db, context.settings, run.id))
    drive = drive_of(trained, points[-1].step) if points else None
    return Target(run.id, f"run {run.id}", points, drive, trained, recipe.prompt or trained.prompt)


def _elsewhere(context: RunContext, recipe: AnalysisRecipe) -> Target:
    if recipe.checkpoints is None:
        raise TypeError("the recipe names a run")
    try:
        found = locate(recipe.checkpoints, context.settings.models_dir)
    except RecipeError as problem:
        raise UserError("unusable_checkpoints", str(problem)) from problem
    points = []
    for one in found:
        try:
            folder = one.folder or find_model(context.db, context.settings, context.fence, one.name).folder
        except ModelError as problem:
            raise UserError("unknown_model", f"the checkpoint of step {one.step}: {problem}") from problem
        points.append(Point(one.step, folder))
    drive = None if recipe.driven_by is None else _stated_drive(recipe.driven_by, points[-1].step)
    label = recipe.checkpoints.folder or f"{len(points)} models"
    return Target(context.run_id, label, tuple(points), drive, None, recipe.prompt or Prompt())


def _train_run(context: RunContext, reference: str) -> Run:
    try:
        with context.db.read() as session:
            run = runs.get(session, reference.removeprefix("run:"))
    except StoreError as problem:
        raise UserError("unknown_run", f"{reference}: {problem}") from problem
    if run.kind != "train":
        raise UserError(
            "not_a_train_run", f"{reference} is of kind {run.kind}; name a train run, which has checkpoints"
        )
    return run


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
        jumps = {
            payload["step"]: Jumped(
                payload["from_step"], payload["beta"], is_norm if payload["skip_norms"] else lambda name: False
            )
            for payload in events.payloads(session, run.id, JUMP)
        }
    return [Point(row.step, settings.home / row.path, jumped=jumps.get(row.step)) for row in _newest(rows)]


def _newest(rows: Sequence[Checkpoint]) -> list[Checkpoint]:
    """Keep one row per step, the latest attempt's."""
    return list({row.step: row for row in rows}.values())


def drive_of(recipe: TrainRecipe, last_step: int) -> Drive | None:
    """Return the optimizer and learning rates that drove a run up to ``last_step``; None when it never moved a weight."""
    per_step = recipe.updates_per_step
    rates = _rates(
        recipe.lr_schedule,
        last_step * per_step,
        base=recipe.learning_rate,
        total=recipe.max_steps * per_step,
        warmup=recipe.warmup_updates,
    )
    if not any(rates):
        return None
    if recipe.optimizer.name == "sgd":
        return Drive("sgd", recipe.optimizer.momentum, 0.0, rates, per_step)
    return Drive("adamw", recipe.adam_beta1, recipe.adam_beta2, rates, per_step)


def _stated_drive(stated: DrivenBy, last_step: int) -> Drive:
    """Only the ratios of the rates matter, so the base rate is 1."""
    per_step = stated.updates_per_step
    total = (stated.max_steps or last_step) * per_step
    rates = _rates(stated.lr_schedule, last_step * per_step, base=1.0, total=total, warmup=stated.warmup_updates)
    if stated.optimizer == "sgd":
        return Drive("sgd", stated.momentum, 0.0, rates, per_step)
    return Drive("adamw", stated.adam_beta1, stated.adam_beta2, rates, per_step)


def _rates(schedule: Schedule, updates: int, *, base: float, total: int, warmup: int) -> tuple[float, ...]:
    total = max(total, updates)
    return tuple(
        learning_rate(schedule, base, update, total=total, warmup=min(warmup, total))
        for update in range(1, updates + 1)
    )


def check_points(points: Sequence[Point], least: int) -> None:
    """Refuse fewer than ``least`` checkpoints; raises :class:`TrajectoryError`."""
    if len(points) < least:
        have = ", ".join(str(point.step) for point in points) or "none"
        raise TrajectoryError(
            "too_few_checkpoints",
            f"this analysis needs at least {least} checkpoints and there are {len(points)} (steps: {have}); "
            "train with a smaller save.every and save.keep all",
        )
