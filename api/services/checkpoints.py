"""Checkpoints: what is told of them, which file may be sent, and which may be deleted."""

from typing import Any

from sqlalchemy.orm import Session

from api.errors import Conflict, Gone, NotFound
from api.services import uses
from api.times import iso
from core.store import checkpoints, runs
from core.store.models import Checkpoint, CheckpointFile
from core.store.provenance import CYCLE_START
from core.store.states import FINAL, RunState


def document(row: Checkpoint, files: list[CheckpointFile]) -> dict[str, Any]:
    """A checkpoint as the API shows it; never its path."""
    return {
        "id": row.id,
        "run_id": row.run_id,
        "attempt": row.attempt,
        "step": row.step,
        "sha256": row.sha256,
        "bytes": row.bytes,
        "has_optimizer": row.has_optimizer,
        "provenance": row.provenance,
        "created_at": iso(row.created_at),
        "superseded": row.superseded,
        "files": [
            {
                "name": file.name,
                "bytes": file.bytes,
                "sha256": file.sha256,
                "href": f"/checkpoints/{row.id}/files/{file.name}",
            }
            for file in files
        ],
    }


def present(session: Session, checkpoint_id: str) -> Checkpoint:
    """The checkpoint, which must not have been deleted. Raises :class:`NotFound` or :class:`Gone`."""
    row = checkpoints.by_id(session, checkpoint_id)
    if row.deleted_at is not None:
        raise Gone(f"checkpoint {row.id} was deleted", code="deleted")
    return row


def file_of(session: Session, checkpoint_id: str, name: str) -> tuple[Checkpoint, CheckpointFile]:
    """The row of one file, found by comparing names, so that nothing a client writes ever becomes a path."""
    row = present(session, checkpoint_id)
    found = next((file for file in checkpoints.files(session, row.id) if file.name == name), None)
    if found is None:
        raise NotFound(
            "this checkpoint has no such file", param="name", hint=f"GET /checkpoints/{row.id} lists its files"
        )
    return row, found


def delete(session: Session, checkpoint_id: str) -> Checkpoint:
    """Mark a checkpoint deleted; its folder is removed after the commit. Raises :class:`Conflict` while it is needed."""
    row = present(session, checkpoint_id)
    run = runs.get(session, row.run_id)
    latest = checkpoints.latest(session, run.id)
    if RunState(run.state) not in FINAL and latest is not None and latest.id == row.id:
        raise Conflict(
            f"run {run.id} is {run.state} and would continue from this checkpoint",
            code="checkpoint_in_use",
            hint="cancel the run first, or delete an earlier checkpoint",
        )
    if latest is not None and RunState(run.state) not in FINAL and latest.provenance.get(CYCLE_START) == row.step:
        raise Conflict(
            f"run {run.id} is {run.state}, and its cycle of re-grounding began with this checkpoint",
            code="checkpoint_in_use",
            hint="cancel the run first, or delete an earlier checkpoint",
        )
    uses.refuse_used_checkpoint(session, row, run)
    return checkpoints.mark_deleted(session, row.id)
