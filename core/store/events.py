"""The audit trail of runs: append and read. Entries are never changed, also not when their run is deleted."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.store.database import now
from core.store.models import Event, Run
from core.store.paging import Page, checked_limit, int_cursor, page_of


def append(
    session: Session,
    run_id: str,
    type: str,  # noqa: A002
    payload: Mapping[str, Any] | None = None,
    attempt: int | None = None,
) -> Event:
    """Append one event. The run's row is locked first, so that within a run a higher ``seq`` never commits earlier."""
    session.execute(select(Run.seq).where(Run.id == run_id).with_for_update(key_share=True))
    event = Event(run_id=run_id, type=type, payload=dict(payload or {}), attempt=attempt, at=now(session))
    session.add(event)
    session.flush()
    return event


def page(session: Session, run_id: str, after: str | int | None = None, limit: int = 100) -> Page[Event]:
    """Return events of a run with ``seq`` above ``after``, oldest first."""
    query = select(Event).where(Event.run_id == run_id).order_by(Event.seq).limit(checked_limit(limit) + 1)
    cursor = int_cursor(after)
    if cursor is not None:
        query = query.where(Event.seq > cursor)
    return page_of(session.scalars(query).all(), limit, lambda event: str(event.seq))


def payloads(session: Session, run_id: str, type: str) -> list[dict[str, Any]]:  # noqa: A002
    """Return what a run's events of one type say, oldest first, those of superseded attempts included."""
    query = select(Event.payload).where(Event.run_id == run_id, Event.type == type).order_by(Event.seq)
    return list(session.scalars(query))


def last_seq(session: Session, run_id: str) -> int:
    """Return the highest ``seq`` of a run's events, 0 when it has none; it changes whenever the run does."""
    return session.scalar(select(Event.seq).where(Event.run_id == run_id).order_by(Event.seq.desc()).limit(1)) or 0
