"""Later gradings of evaluations: start, add verdicts, finish; list and read. Original verdicts are never touched."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import delete, insert, or_, select
from sqlalchemy.orm import Session

from core.store.database import now
from core.store.errors import NotFound
from core.store.fencing import Fence, require
from core.store.grading_models import LaterVerdict, Regrade
from core.store.models import Evaluation, ItemRecord

FINISHED = "finished"


def start(session: Session, fence: Fence, *, evaluation_id: str, verifier: str, verifier_version: str) -> str:
    """Open a grading with status running and return its id; it counts only once finished."""
    require(session, fence)
    row = Regrade(
        evaluation_id=evaluation_id,
        run_id=fence.run_id,
        attempt=fence.attempt,
        verifier=verifier,
        verifier_version=verifier_version,
        created_at=now(session),
    )
    session.add(row)
    session.flush()
    return row.id


def add(session: Session, fence: Fence, regrade_id: str, verdicts: Sequence[Mapping[str, Any]]) -> None:
    """Add verdicts; each mapping has ``record_id`` and the columns of `LaterVerdict`."""
    require(session, fence)
    _own(session, fence, regrade_id)
    if verdicts:
        session.execute(insert(LaterVerdict), [{**one, "regrade_id": regrade_id} for one in verdicts])


def finish(session: Session, fence: Fence, regrade_id: str, **summary: Any) -> Regrade:
    """Close a grading with its summary, the columns of `Regrade` from ``records`` to ``measures``."""
    require(session, fence)
    row = _own(session, fence, regrade_id)
    for name, value in summary.items():
        setattr(row, name, value)
    row.status, row.finished_at = FINISHED, now(session)
    session.flush()
    return row


def discard_unfinished(session: Session, fence: Fence) -> int:
    """Delete what earlier attempts of the grading run left unfinished, and return how many gradings that were."""
    require(session, fence)
    return _delete(session, Regrade.run_id == fence.run_id, Regrade.status != FINISHED)


def delete_for_run(session: Session, run_id: str) -> None:
    """Delete the gradings of a run's evaluations and those that the run itself made; the caller deletes the run."""
    mine = select(Evaluation.id).where(Evaluation.run_id == run_id)
    _delete(session, or_(Regrade.evaluation_id.in_(mine), Regrade.run_id == run_id))


def _delete(session: Session, *which: Any) -> int:
    ids = list(session.scalars(select(Regrade.id).where(*which)))
    if ids:
        session.execute(delete(LaterVerdict).where(LaterVerdict.regrade_id.in_(ids)))
        session.execute(delete(Regrade).where(Regrade.id.in_(ids)))
    return len(ids)


def get(session: Session, regrade_id: str) -> Regrade:
    """Return one grading; raises NotFound."""
    row = session.get(Regrade, regrade_id)
    if row is None:
        raise NotFound(f"there is no later grading {regrade_id[:40]!r}")
    return row


def list_for(session: Session, evaluation_id: str) -> list[Regrade]:
    """Return the finished gradings of an evaluation, oldest first."""
    query = select(Regrade).where(Regrade.evaluation_id == evaluation_id, Regrade.status == FINISHED)
    return list(session.scalars(query.order_by(Regrade.created_at, Regrade.id)))


def done_by(session: Session, run_id: str) -> set[str]:
    """Return the evaluations that the run has finished grading."""
    query = select(Regrade.evaluation_id).where(Regrade.run_id == run_id, Regrade.status == FINISHED)
    return set(session.scalars(query))


def of_records(session: Session, record_ids: Sequence[int]) -> dict[int, list[tuple[Regrade, LaterVerdict]]]:
    """Return the finished later verdicts on records, oldest grading first, by record."""
    query = select(Regrade, LaterVerdict).join(LaterVerdict, LaterVerdict.regrade_id == Regrade.id)
    query = query.where(LaterVerdict.record_id.in_(record_ids), Regrade.status == FINISHED)
    found: dict[int, list[tuple[Regrade, LaterVerdict]]] = {}
    for regrade, verdict in session.execute(query.order_by(Regrade.created_at, Regrade.id)):
        found.setdefault(verdict.record_id, []).append((regrade, verdict))
    return found


def verdicts(session: Session, regrade_id: str) -> list[tuple[str, str | None, str]]:
    """Return (item id, cluster, verdict) of every record of a grading, in the suite's order."""
    query = select(ItemRecord.item_id, ItemRecord.cluster, LaterVerdict.verdict)
    query = query.join(LaterVerdict, LaterVerdict.record_id == ItemRecord.id)
    query = query.where(LaterVerdict.regrade_id == regrade_id).order_by(ItemRecord.position, ItemRecord.sample)
    return [(item_id, cluster, verdict) for item_id, cluster, verdict in session.execute(query)]


def _own(session: Session, fence: Fence, regrade_id: str) -> Regrade:
    row = get(session, regrade_id)
    if row.run_id != fence.run_id or row.status == FINISHED:
        raise NotFound(f"run {fence.run_id} has no unfinished grading {regrade_id}")
    return row
