"""The analysis job: every analysis of the recipe over the checkpoints it names, each stored as soon as it is done.

A later attempt keeps the analyses that were stored. What is measured lives in the other modules; this one knows the store.
"""

from dataclasses import dataclass
from typing import Any

from core.dynamics import outputs
from core.dynamics.figures import write_figures
from core.dynamics.gradient_noise import gradient_noise
from core.dynamics.linearity import weight_linearity
from core.dynamics.tables import Analysed, rows_as_columns, write_tables
from core.dynamics.target import Target, find_target
from core.dynamics.tensor_file import TrajectoryError
from core.dynamics.trajectory import Trajectory
from core.jobs import Outcome, RunContext, UserError
from core.recipes import AnalysisRecipe
from core.recipes.analysis import ComputeSpec
from core.store import analyses, runs
from core.store.types import new_id

_MOST_ROWS = 1000


class _Ended(Exception):  # noqa: N818 - not an error: the run was asked to stop
    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome


def run_analysis(context: RunContext) -> Outcome:
    """Run one attempt of an analysis run to its outcome.

    Raises UserError where the run, its checkpoints or the recipe cannot be analysed: ``unknown_run``, ``not_a_train_run``,
    ``unusable_checkpoints``, ``unknown_model``, or the code of the :class:`TrajectoryError`.
    """
    recipe = context.recipe
    if not isinstance(recipe, AnalysisRecipe):
        raise TypeError(f"run {context.run_id} is of kind {recipe.kind}, not analysis")
    target = find_target(context, recipe)
    try:
        for spec in recipe.compute:
            if not _stored(context, spec):
                _compute(context, recipe, target, spec)
    except _Ended as ended:
        return ended.outcome
    except TrajectoryError as problem:
        raise UserError(problem.code, str(problem)) from problem
    return Outcome("succeeded", f"{len(recipe.compute)} analyses of {target.label} finished")


def _stored(context: RunContext, spec: ComputeSpec) -> bool:
    with context.db.read() as session:
        rows = analyses.list_for_run(session, context.run_id)
    return any(row.run_id == context.run_id and (row.name, row.params) == (spec.name, _params(spec)) for row in rows)


def _params(spec: ComputeSpec) -> dict[str, Any]:
    return spec.model_dump(mode="json", exclude={"name"})


def _compute(context: RunContext, recipe: AnalysisRecipe, target: Target, spec: ComputeSpec) -> None:
    progress = Progress(context, spec.name)
    progress(0, None)
    context.log.info("%s over steps %s of %s", spec.name, [point.step for point in target.points], target.label)
    match spec.name:
        case "weight_linearity":
            analysed = _weights(recipe, target, spec, progress)
        case "gradient_noise":
            analysed = gradient_noise(context, recipe, target, spec, progress)
        case _:
            analysed = outputs.analyse(context, recipe, target, spec, progress)
    context.log.info("%s", analysed.result["statement"])
    _store(context, target, spec, analysed)


def _weights(recipe: AnalysisRecipe, target: Target, spec: ComputeSpec, progress: "Progress") -> Analysed:
    with Trajectory.open(target.points) as trajectory:
        result = weight_linearity(
            trajectory,
            seed=recipe.seed,
            threshold=spec.threshold,
            sample=spec.sample,
            drive=target.drive,
            on_tensor=lambda done, total: progress(done, total, "tensors"),
        )
    rows = result["tensors"]
    shown = result | {"tensors": rows[:_MOST_ROWS], "tensors_left_out": max(0, len(rows) - _MOST_ROWS)}
    return Analysed(shown, {"tensors": rows_as_columns(rows)})


@dataclass(frozen=True)
class Progress:
    """Reports how far one analysis is, and ends the attempt there when that was asked for."""

    context: RunContext
    phase: str

    def __call__(self, done: int, total: int | None, unit: str = "checkpoints") -> None:
        """Tell the store; what calls this between two pieces of work can be stopped there."""
        context = self.context
        with context.db.fenced(context.fence) as session:
            runs.progress(session, context.fence, phase=self.phase, done=done, total=total, unit=unit)
        match context.control.requested:
            case "cancel":
                raise _Ended(Outcome("cancelled", "cancelled by request; finished analyses stay"))
            case "pause":
                raise _Ended(Outcome("paused", "paused by request"))
            case "drain":
                raise _Ended(Outcome("interrupted", "the worker is shutting down"))
            case None:
                return


def _store(context: RunContext, target: Target, spec: ComputeSpec, analysed: Analysed) -> None:
    """Write figures and tables, then the row that names them; a crash between the two leaves files that nobody names."""
    analysis_id = new_id()
    folder = context.settings.analysis_dir(analysis_id)
    folder.mkdir(parents=True)
    figures = write_figures(analysed.result, folder)
    result = analysed.result | {"tables": write_tables(analysed.tables, folder)}
    with context.db.fenced(context.fence) as session:
        analyses.add(
            session,
            context.fence,
            target_run_id=target.run_id,
            name=spec.name,
            params=_params(spec),
            result=result,
            figures=figures,
            id=analysis_id,
        )
