"""Checkpoints: rows for complete folders. Writing, renaming and removing folders is the trainer's and the operator's part."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Select, false, select
from sqlalchemy.orm import Session

from core.store import events
from core.store.database import now
from core.store.errors import NotFound
from core.store.fencing import Fence, require
from core.store.models import Checkpoint, CheckpointFile, Event, Look, Run
from core.store.states import FINAL

PINNED = "model_pinned"
"""Event by which a run fixes what a reference to another run's checkpoint means to it."""


def add(
    session: Session,
    fence: Fence,
    *,
    step: int,
    path: str,
    sha256: str,
    files: Mapping[str, Mapping[str, Any]],
    bytes: int,  # noqa: A002
    has_optimizer: bool,
    provenance: Mapping[str, Any],
) -> Checkpoint:
    """Record a complete checkpoint. ``path`` is relative to the home folder; ``files`` is {name: {"bytes", "sha256"}}."""
    require(session, fence)
    row = Checkpoint(
        run_id=fence.run_id, attempt=fence.attempt, step=step, path=path, sha256=sha256, bytes=bytes,
        has_optimizer=has_optimizer, provenance=dict(provenance), created_at=now(session),
    )  # fmt: skip
    session.add(row)
    session.flush()
    session.add_all(
        CheckpointFile(checkpoint_id=row.id, name=name, bytes=facts["bytes"], sha256=facts["sha256"])
        for name, facts in files.items()
    )
    events.append(session, fence.run_id, "checkpoint", {"id": row.id, "step": step, "sha256": sha256}, fence.attempt)
    return row


def by_id(session: Session, checkpoint_id: str) -> Checkpoint:
    """Return one checkpoint; raises NotFound."""
    row = session.get(Checkpoint, checkpoint_id)
    if row is None:
        raise NotFound(f"there is no checkpoint {checkpoint_id[:40]!r}")
    return row


def files(session: Session, checkpoint_id: str) -> list[CheckpointFile]:
    """Return a checkpoint's files by name."""
    query = select(CheckpointFile).where(CheckpointFile.checkpoint_id == checkpoint_id).order_by(CheckpointFile.name)
    return list(session.scalars(query))


def list_(session: Session, run_id: str, *, superseded: bool = False, deleted: bool = False) -> list[Checkpoint]:
    """Return a run's checkpoints by step; superseded and deleted ones only when asked for."""
    query = select(Checkpoint).where(Checkpoint.run_id == run_id).order_by(Checkpoint.step, Checkpoint.attempt)
    query = query if superseded else query.where(Checkpoint.superseded == false())
    query = query if deleted else query.where(Checkpoint.deleted_at.is_(None))
    return list(session.scalars(query))


def latest(session: Session, run_id: str) -> Checkpoint | None:
    """Return the checkpoint to resume from: the one with the highest step."""
    return session.scalar(_usable(run_id).order_by(Checkpoint.step.desc(), Checkpoint.attempt.desc()).limit(1))


def at_step(session: Session, run_id: str, step: int) -> Checkpoint | None:
    """Return the checkpoint of one step."""
    return session.scalar(_usable(run_id).where(Checkpoint.step == step).order_by(Checkpoint.attempt.desc()).limit(1))


def best(session: Session, run_id: str, suite: str | None = None) -> Checkpoint | None:
    """Return the checkpoint with the highest accuracy at its look, the earliest of equals.

    ``suite`` is the looks' suite, by default that of the run's first look. None when no look has a checkpoint.
    """
    looks = select(Look).where(Look.run_id == run_id, Look.superseded == false(), Look.accuracy.is_not(None))
    if suite is None:
        suite = session.scalar(looks.with_only_columns(Look.suite).order_by(Look.step, Look.created_at).limit(1))
    seen = (
        (Look.run_id == Checkpoint.run_id)
        & (Look.step == Checkpoint.step)
        & (Look.checkpoint_sha256 == Checkpoint.sha256)
    )
    query = (
        _usable(run_id)
        .join(Look, seen)
        .where(Look.superseded == false(), Look.suite == suite, Look.accuracy.is_not(None))
    )
    return session.scalar(query.order_by(Look.accuracy.desc(), Checkpoint.step, Checkpoint.attempt.desc()).limit(1))


def steps_in_use(session: Session, run_id: str) -> set[int]:
    """Return the steps at which a run that is not final forked from ``run_id``, or that it names or has pinned as a model."""
    users = select(Run.id, Run.parent_id, Run.parent_step, Run.recipe)
    users = users.where(Run.state.not_in(FINAL), Run.deleted_at.is_(None))
    steps: set[int] = set()
    for user_id, parent_id, parent_step, recipe in session.execute(users):
        if parent_id == run_id and parent_step is not None:
            steps.add(parent_step)
        pinned = [pin["model"] for pin in pins(session, user_id)]
        line = recipe.get("extrapolation") or {}
        for model in (recipe.get("model"), line.get("a"), line.get("b"), *recipe.get("against", ()), *pinned):
            owner, _, step = str(model).partition("/step-")
            if owner == f"run:{run_id}" and step.isdecimal():
                steps.add(int(step))
    return steps


def pins(session: Session, run_id: str) -> list[dict[str, Any]]:
    """Return what a run has pinned, oldest first: {reference, model (its step named), checkpoint (its id), sha256}."""
    query = select(Event.payload).where(Event.run_id == run_id, Event.type == PINNED).order_by(Event.seq)
    return list(session.scalars(query))


def mark_deleted(session: Session, checkpoint_id: str) -> Checkpoint:
    """Mark a checkpoint deleted, before its folder goes; doing so twice changes nothing."""
    row = by_id(session, checkpoint_id)
    if row.deleted_at is None:
        row.deleted_at = now(session)
        session.flush()
        events.append(session, row.run_id, "checkpoint_deleted", {"id": row.id, "step": row.step})
    return row


def forget_optimizer(
    session: Session, checkpoint_id: str, *, file: str, manifest: str, manifest_bytes: int, manifest_sha256: str
) -> None:
    """Record that a checkpoint keeps its weights alone: ``file`` goes, and ``manifest`` no longer names it."""
    row = by_id(session, checkpoint_id)
    for one in files(session, checkpoint_id):
        if one.name == file:
            row.bytes -= one.bytes
            session.delete(one)
        elif one.name == manifest:
            row.bytes += manifest_bytes - one.bytes
            one.bytes, one.sha256 = manifest_bytes, manifest_sha256
    row.has_optimizer = False
    session.flush()


def _usable(run_id: str) -> Select[Checkpoint]:
    query = select(Checkpoint).where(Checkpoint.run_id == run_id)
    return query.where(Checkpoint.superseded == false(), Checkpoint.deleted_at.is_(None))
