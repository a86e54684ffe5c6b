"""From a model reference of a recipe to a folder of weights, through the store where it names a run's checkpoint.

Only complete checkpoints that belong to the run's current trajectory can be named. A run that is not over can come to mean
other weights by ``best`` and ``last``, so whoever uses a checkpoint is pinned to it by an event. Nothing is loaded here.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy.orm import Session

from core.engines.models import ModelError, resolve_model
from core.settings import Settings
from core.store import checkpoints, events, runs
from core.store.database import Database
from core.store.errors import StoreError
from core.store.fencing import Fence
from core.store.models import Checkpoint
from core.store.provenance import FORM, SOURCE_RUN

_RUN_REFERENCE = re.compile(r"run:([0-9a-f]{4,12})/(best|last|step-(\d+))")


@dataclass(frozen=True)
class ModelSource:
    """A folder of weights. ``sha256`` is the checkpoint's weights hash, None for a model that is not a checkpoint.

    ``run_id`` is the train run that the weights stem from, also where an analysis computed them from its checkpoints.
    """

    folder: Path
    reference: str
    sha256: str | None
    run_id: str | None = None


def find_model(db: Database, settings: Settings, fence: Fence, reference: str) -> ModelSource:
    """Return where the weights are that ``reference`` means to the run that holds ``fence``, in all of its attempts.

    ``run:ID/best`` is the checkpoint of the look with the highest held-out accuracy, ``last`` the newest, ``step-N`` that of
    one step. The first attempt that asks pins the checkpoint it finds; later ones get that one, whatever the other run did
    since. The returned reference names the step. Raises :class:`ModelError` that says what the run does have.
    """
    if not reference.startswith("run:"):
        return ModelSource(resolve_model(reference, settings), reference, None)
    with db.fenced(fence) as session:
        row = _pinned(session, fence.run_id, reference)
        if row is None:
            row = find_checkpoint(session, reference)
            pin = {"reference": reference, "model": _name(row), "checkpoint": row.id, "sha256": row.sha256}
            events.append(session, fence.run_id, checkpoints.PINNED, pin, fence.attempt)
    if row.deleted_at is not None:
        raise ModelError(
            f"model {reference!r}: this run began with {_name(row)}, whose checkpoint was deleted since; post the recipe "
            "anew with a checkpoint that is there"
        )
    return ModelSource(settings.home / row.path, _name(row), row.sha256, row.provenance.get(SOURCE_RUN, row.run_id))


def start_model(session: Session, run_id: str, reference: str) -> str:
    """Return what ``reference``, the model of run ``run_id``, has meant to that run: a step where it named a checkpoint."""
    row = _pinned(session, run_id, reference)
    return reference if row is None else _name(row)


def _pinned(session: Session, run_id: str, reference: str) -> Checkpoint | None:
    pins = [pin for pin in checkpoints.pins(session, run_id) if pin["reference"] == reference]
    return checkpoints.by_id(session, pins[0]["checkpoint"]) if pins else None


def _name(row: Checkpoint) -> str:
    return f"run:{row.run_id}/step-{row.step}"


def find_checkpoint(session: Session, reference: str) -> Checkpoint:
    """Return the checkpoint that ``run:ID/best|last|step-N`` names; raises :class:`ModelError`."""
    match = _RUN_REFERENCE.fullmatch(reference)
    if match is None:
        raise ModelError(f"{reference!r} does not name a checkpoint; write run:ID/best, run:ID/last or run:ID/step-N")
    try:
        run = runs.get(session, match[1])
    except StoreError as problem:
        raise ModelError(f"model {reference!r}: {problem}") from problem
    match match[2]:
        case "best":
            row = checkpoints.best(session, run.id)
        case "last":
            row = checkpoints.latest(session, run.id)
        case _:
            row = checkpoints.at_step(session, run.id, int(match[3]))
    if row is None:
        steps = [str(one.step) for one in checkpoints.list_(session, run.id)]
        have = f"has checkpoints of steps {', '.join(steps)}" if steps else "has no checkpoint yet"
        raise ModelError(f"model {reference!r} is not there: run {run.id} {have}")
    if (form := row.provenance.get(FORM, "hf")) != "hf":
        raise ModelError(
            f"model {reference!r} is an export as {form}, which is a file to take away; name what it was made of"
        )
    return row
