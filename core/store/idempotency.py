"""Idempotency keys: what was answered to a request, so that its repeat gets the same answer. Keys hold for 24 hours."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import delete, update
from sqlalchemy.orm import Session

from core.store.database import insert_for, now
from core.store.models import IdempotencyKey

KEPT_S = 86_400.0
IN_FLIGHT_S = 120.0
"""A request unfinished after this long belongs to a process that died. Its work and its answer commit together, so
nothing of it exists, and the key is free again."""

IN_FLIGHT = "in_flight"
DONE = "done"


@dataclass(frozen=True)
class Fresh:
    """Nobody used the key: do the work, then `complete` or `release` it."""


@dataclass(frozen=True)
class Replay:
    """The same request was answered before, like this."""

    status_code: int
    response: dict[str, Any]


@dataclass(frozen=True)
class Conflict:
    """The key was used for another request."""


@dataclass(frozen=True)
class InFlight:
    """The same request is still being answered."""


def begin(session: Session, *, scope_id: str, key: str, body_hash: str) -> Fresh | Replay | Conflict | InFlight:
    """Claim ``key`` within ``scope_id`` (one token's requests) for the request with ``body_hash``."""
    at = now(session)
    session.execute(
        delete(IdempotencyKey).where(
            (IdempotencyKey.created_at < at - KEPT_S)
            | ((IdempotencyKey.state == IN_FLIGHT) & (IdempotencyKey.created_at < at - IN_FLIGHT_S))
        )
    )
    values = {"scope_id": scope_id, "key": key, "body_hash": body_hash, "state": IN_FLIGHT, "created_at": at}
    taking = insert_for(session)(IdempotencyKey).values(**values).on_conflict_do_nothing().returning(IdempotencyKey.key)
    if session.execute(taking).first() is not None:
        return Fresh()
    # On PostgreSQL the row may have gone between the two statements; then its request was refused, and the client may repeat.
    row = session.get(IdempotencyKey, (scope_id, key), populate_existing=True)
    if row is None:
        return InFlight()
    if row.body_hash != body_hash:
        return Conflict()
    if row.state == IN_FLIGHT or row.status_code is None:
        return InFlight()
    return Replay(row.status_code, dict(row.response or {}))


def complete(session: Session, *, scope_id: str, key: str, status_code: int, response: dict[str, Any]) -> None:
    """Store the answer, in the transaction that did the work."""
    done = update(IdempotencyKey).where(IdempotencyKey.scope_id == scope_id, IdempotencyKey.key == key)
    session.execute(done.values(state=DONE, status_code=status_code, response=response))


def release(session: Session, *, scope_id: str, key: str) -> None:
    """Give a key back whose work was refused; an answer already stored stays."""
    mine = (IdempotencyKey.scope_id == scope_id, IdempotencyKey.key == key, IdempotencyKey.state == IN_FLIGHT)
    session.execute(delete(IdempotencyKey).where(*mine))
