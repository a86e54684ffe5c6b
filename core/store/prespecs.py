"""Prespecifications and the append-only log that gives them their order and their time.

What a document must say, and whether an exported log holds together, is decided in `core.prespec`.
"""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.store import chain, events
from core.store.database import now, serialise
from core.store.errors import FrozenTooLate, NotFound
from core.store.lifecycle import lock
from core.store.models import LogEntry, Look, Prespecification
from core.store.paging import Page, checked_limit, int_cursor, page_of

LOG_TYPES = (
    "prespec_frozen",
    "tsa_token",
    "run_started",
    "checkpoint",
    "eval_batch",
    "stop_decision",
    "report",
    "amendment",
    "withdrawal",
)
"""What may be logged."""


def freeze(
    session: Session,
    *,
    document: Mapping[str, Any],
    canonical: str,
    hash: str,  # noqa: A002
    automatic: bool,
    exploratory: bool,
    run_id: str | None = None,
) -> Prespecification:
    """Freeze a document, with its log entry; the entry's time is `frozen_at`. The run, if given, points at it from now on.

    Raises :class:`FrozenTooLate` when the run already has a look, superseded or not: then a result existed.
    """
    run = None if run_id is None else lock(session, run_id)
    if run is not None and session.scalar(select(Look.id).where(Look.run_id == run.id).limit(1)) is not None:
        raise FrozenTooLate(
            f"run {run.id} already has a look, so nothing about it can be specified in advance any more"
        )
    entry = append_log(
        session, "prespec_frozen", {"hash": hash, "run_id": run_id, "automatic": automatic, "exploratory": exploratory}
    )
    row = Prespecification(
        run_id=run_id, document=dict(document), canonical=canonical, hash=hash, automatic=automatic, exploratory=exploratory,
        frozen_at=entry.claimed_at, log_seq=entry.seq,
    )  # fmt: skip
    session.add(row)
    session.flush()
    if run is not None:
        run.prespecification_id = row.id
        session.flush()
        events.append(session, run.id, "prespec_frozen", {"id": row.id, "hash": hash, "automatic": automatic})
    return row


def get(session: Session, prespecification_id: str) -> Prespecification:
    """Return one prespecification; raises NotFound."""
    row = session.get(Prespecification, prespecification_id)
    if row is None:
        raise NotFound(f"there is no prespecification {prespecification_id[:40]!r}")
    return row


def page(session: Session, *, after: str | int | None = None, limit: int = 50) -> Page[Prespecification]:
    """Return prespecifications, newest first."""
    query = select(Prespecification).order_by(Prespecification.log_seq.desc()).limit(checked_limit(limit) + 1)
    cursor = int_cursor(after)
    if cursor is not None:
        query = query.where(Prespecification.log_seq < cursor)
    return page_of(session.scalars(query).all(), limit, lambda row: str(row.log_seq))


def amend(session: Session, prespecification_id: str, payload: Mapping[str, Any]) -> Prespecification:
    """Append an amendment, with its log entry; the frozen document itself never changes."""
    serialise(session, f"prespec:{prespecification_id}")
    row = session.get(Prespecification, prespecification_id, populate_existing=True)
    if row is None:
        raise NotFound(f"there is no prespecification {prespecification_id[:40]!r}")
    entry = append_log(session, "amendment", {"hash": row.hash, "amendment": dict(payload)})
    row.amendments = [*row.amendments, {"seq": entry.seq, "at": entry.claimed_at, "payload": dict(payload)}]
    session.flush()
    return row


def append_log(session: Session, type: str, payload: Mapping[str, Any]) -> LogEntry:  # noqa: A002
    """Append one entry to the log. Numbers have no gaps; floats in the payload are stored as decimal strings."""
    if type not in LOG_TYPES:
        raise ValueError(f"log entry type is {type!r}; allowed are {', '.join(LOG_TYPES)}")
    serialise(session, "log_entries")
    last = session.scalar(select(LogEntry).order_by(LogEntry.seq.desc()).limit(1))
    seq, previous = (1, chain.GENESIS) if last is None else (last.seq + 1, last.hash)
    stored: dict[str, Any] = chain.normal(dict(payload))
    inner, at = chain.payload_hash(stored), now(session)
    outer = chain.entry_hash(seq=seq, type=type, payload_hash=inner, previous_hash=previous, claimed_at=at)
    entry = LogEntry(
        seq=seq, type=type, payload=stored, payload_hash=inner, previous_hash=previous, hash=outer, claimed_at=at
    )  # fmt: skip
    session.add(entry)
    session.flush()
    return entry


def log_page(session: Session, after: str | int | None = None, limit: int = 100) -> Page[LogEntry]:
    """Return log entries with a number above ``after``, in order."""
    query = select(LogEntry).order_by(LogEntry.seq).limit(checked_limit(limit) + 1)
    cursor = int_cursor(after)
    if cursor is not None:
        query = query.where(LogEntry.seq > cursor)
    return page_of(session.scalars(query).all(), limit, lambda entry: str(entry.seq))
