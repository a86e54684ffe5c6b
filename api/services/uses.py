"""Which runs still need a run or one of its checkpoints, so that nothing is deleted from under them.

What a run needs is read from its recipe, its lineage and the checkpoints it has pinned. Nothing is deleted here.
"""

from collections.abc import Iterator

from sqlalchemy.orm import Session

from api.errors import Conflict
from core.recipes.model_refs import is_run_ref
from core.store import checkpoints, runs
from core.store.models import Checkpoint, Run

_NAMED = 8
"""At most so many runs are named in one message."""


def refuse_used_run(session: Session, run: Run) -> None:
    """Refuse to delete a run that others need. Raises :class:`Conflict`.

    A train run that starts from one of its checkpoints needs it as long as it exists, since its base is that checkpoint. Any
    other run needs what its recipe names until it is final.
    """
    children = [one.id for one in runs.others(session, run) if one.kind == "train" and _starts_from(one, run)]
    if children:
        raise Conflict(
            f"checkpoints of run {run.id} are where other runs start from: {_names(children)}",
            code="run_in_use",
            hint="delete those runs first (a run that is not final must be cancelled before)",
        )
    waiting = [
        one.id
        for one in runs.others(session, run, unfinished=True)
        if any(_names_run(ref, run) for ref in _references(session, one))
    ]
    if waiting:
        raise Conflict(
            f"run {run.id} is needed by runs that are not over: {_names(waiting)}",
            code="run_in_use",
            hint="cancel those runs or let them end first",
        )


def refuse_used_checkpoint(session: Session, row: Checkpoint, run: Run) -> None:
    """Refuse to delete a checkpoint of ``run`` that runs which are not final need. Raises :class:`Conflict`."""
    waiting = [one.id for one in runs.others(session, run, unfinished=True) if _needs(session, one, row, run)]
    if waiting:
        raise Conflict(
            f"checkpoint {row.id} (run {run.id}, step {row.step}) is needed by runs that are not over: {_names(waiting)}",
            code="checkpoint_in_use",
            hint="cancel those runs or let them end first",
        )


def _needs(session: Session, user: Run, row: Checkpoint, run: Run) -> bool:
    if user.parent_id == run.id and user.parent_step == row.step:
        return True
    pinned = {pin["reference"]: pin["checkpoint"] for pin in checkpoints.pins(session, user.id)}
    return any(_may_mean(ref, row, pinned.get(ref)) for ref in _references(session, user) if _names_run(ref, run))


def _may_mean(ref: str, row: Checkpoint, pinned: str | None) -> bool:
    """Whether a reference to the checkpoint's run means this one. ``run:ID`` alone, of an analysis, means all of them.

    ``best`` and ``last`` can come to mean any checkpoint until the first attempt pins one.
    """
    if pinned is not None:
        return pinned == row.id
    which = ref.partition("/")[2]
    return which in {"", "best", "last", f"step-{row.step}"}


def _starts_from(child: Run, run: Run) -> bool:
    return (child.parent_id == run.id and child.parent_step is not None) or _names_run(child.model or "", run)


def _references(session: Session, user: Run) -> Iterator[str]:
    """What a run's recipe names; ``base`` is what the evaluated run started from."""
    model = user.model or ""
    yield model
    yield user.recipe.get("run") or ""
    line = user.recipe.get("extrapolation") or {}
    yield from (line[side] for side in ("a", "b") if side in line)
    for ref in user.recipe.get("against", ()):
        if ref == "base" and is_run_ref(model):
            yield runs.get(session, model.removeprefix("run:").partition("/")[0], deleted=True).model or ""
        else:
            yield ref


def _names_run(ref: str, run: Run) -> bool:
    return ref.partition("/")[0] == f"run:{run.id}"


def _names(run_ids: list[str]) -> str:
    more = len(run_ids) - _NAMED
    return ", ".join(run_ids[:_NAMED]) + (f" and {more} more" if more > 0 else "")
