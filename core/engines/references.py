"""From a model reference of a recipe to a folder of weights, through the store where it names a run's checkpoint.

Only complete checkpoints that belong to the run's current trajectory can be named. Nothing is loaded here.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy.orm import Session

from core.engines.models import ModelError, resolve_model
from core.settings import Settings
from core.store import checkpoints, runs
from core.store.database import Database
from core.store.errors import StoreError
from core.store.models import Checkpoint

_RUN_REFERENCE = re.compile(r"run:([0-9a-f]{4,12})/(best|last|step-(\d+))")


@dataclass(frozen=True)
class ModelSource:
    """A folder of weights. ``sha256`` is the checkpoint's weights hash, None for a model that is not a checkpoint."""

    folder: Path
    reference: str
    sha256: str | None


def find_model(db: Database, settings: Settings, reference: str) -> ModelSource:
    """Return where the weights of ``reference`` are.

    ``run:ID/best`` is the checkpoint of the look with the highest held-out accuracy, ``last`` the newest, ``step-N`` that of
    one step; the returned reference names the step. Raises :class:`ModelError` that says what the run does have.
    """
    if not reference.startswith("run:"):
        return ModelSource(resolve_model(reference, settings), reference, None)
    with db.read() as session:
        row = find_checkpoint(session, reference)
    return ModelSource(settings.home / row.path, f"run:{row.run_id}/step-{row.step}", row.sha256)


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
        have = f"it has checkpoints of steps {', '.join(steps)}" if steps else "it has no checkpoint yet"
        raise ModelError(f"model {reference!r} is not there: run {run.id} {have}")
    return row
