"""Numbers of rows for gauges: runs by state, doorbells not sent yet. Nothing here decides anything."""

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from core.store.models import Outbox, Run


def runs_by_state(session: Session) -> dict[str, int]:
    """Return how many runs are in each state that occurs, deleted runs left out."""
    query = select(Run.state, func.count()).where(Run.deleted_at.is_(None)).group_by(Run.state)
    return {state: number for state, number in session.execute(query)}  # noqa: C416 - a result is no mapping


def unsent_doorbells(session: Session) -> int:
    """Return how many outbox rows the broker has not taken yet."""
    return session.scalar(select(func.count()).select_from(Outbox).where(Outbox.sent_at.is_(None))) or 0
