"""What both jobs that make weights share: the run they are about, the rows they write, and where they can be stopped."""

from dataclasses import dataclass
from typing import Any

from core.jobs import RunContext
from core.recipes import AnalysisRecipe, TrainRecipe
from core.recipes.analysis import ComputeSpec
from core.store import checkpoints, runs
from core.store.models import Checkpoint, Run
from core.train import checkpoints as folders


class Interrupted(Exception):  # noqa: N818 - not an error: the run was asked to stop
    """The run was asked to stop at a safe point."""


@dataclass(frozen=True)
class Making:
    """One attempt of a run that makes weights out of the checkpoints of the train run ``run``."""

    context: RunContext
    recipe: AnalysisRecipe
    spec: ComputeSpec
    run: Run
    trained: TrainRecipe


def add_row(context: RunContext, written: folders.WrittenCheckpoint, provenance: dict[str, Any]) -> Checkpoint:
    """Record a complete folder as a checkpoint of this run."""
    with context.db.fenced(context.fence) as session:
        return checkpoints.add(
            session,
            context.fence,
            step=written.step,
            path=str(written.directory.relative_to(context.settings.home)),
            sha256=written.weights_sha256,
            files={file.name: {"bytes": file.bytes, "sha256": file.sha256} for file in written.files},
            bytes=written.bytes,
            has_optimizer=False,
            provenance=provenance,
        )


def proceed(context: RunContext, phase: str, done: int, total: int | None) -> None:
    """Report progress, and end here when that was asked for: tensors are the safe points."""
    with context.db.fenced(context.fence) as session:
        runs.progress(session, context.fence, phase=phase[: runs.PHASE_LENGTH], done=done, total=total, unit="tensors")
    if context.control.requested is not None:
        raise Interrupted
