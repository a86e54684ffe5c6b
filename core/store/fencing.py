"""Fencing: the proof that a write comes from the attempt that holds the run's lease now.

Every claim raises the run's fence by one and hands it out. A function that writes for an attempt asks :func:`require`
first, in the same transaction as the write; the row stays locked until that commits (PostgreSQL by a row lock, SQLite because a
write transaction excludes all others), so a lease cannot be taken back between the check and the write.

An expired lease that nobody took back is still held: expiry allows the sweeper to act, the fence decides.
"""

from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.store.errors import StaleAttempt
from core.store.models import Run
from core.store.states import HELD

_VERIFIED = "driftline_verified_fences"


@dataclass(frozen=True)
class Fence:
    """Names one attempt of one run and carries its token; tokens of a run strictly increase."""

    run_id: str
    attempt: int
    token: int


def require(session: Session, fence: Fence) -> None:
    """Raise :class:`StaleAttempt` unless ``fence`` holds its run; checked once per transaction."""
    verified: set[Fence] = session.info.setdefault(_VERIFIED, set())
    if fence in verified:
        return
    query = select(Run.seq).where(*holds(fence)).with_for_update(key_share=True)
    if session.execute(query).first() is None:
        raise StaleAttempt(stale_message(fence))
    verified.add(fence)


def release(session: Session, fence: Fence) -> None:
    """Forget that ``fence`` was verified: the transaction has just given the lease up."""
    session.info.get(_VERIFIED, set()).discard(fence)


def holds(fence: Fence) -> tuple:  # type: ignore[type-arg]
    """Return the SQL conditions under which ``fence`` holds its run."""
    return (Run.id == fence.run_id, Run.attempt == fence.attempt, Run.fence == fence.token, Run.state.in_(HELD))


def stale_message(fence: Fence) -> str:
    """Say what a stale attempt must be told."""
    return (
        f"attempt {fence.attempt} of run {fence.run_id} no longer holds it (fence {fence.token}): "
        "the run ended or its lease was taken back; nothing was written"
    )
