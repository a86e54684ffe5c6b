"""Results of analysis runs: add, find, list. Figures are files beside the analysis; rows hold their names."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from core.store import events
from core.store.database import now
from core.store.errors import NotFound
from core.store.fencing import Fence, require
from core.store.models import Analysis


def add(
    session: Session,
    fence: Fence,
    *,
    target_run_id: str,
    name: str,
    params: Mapping[str, Any],
    result: Mapping[str, Any],
    figures: Sequence[str] = (),
    id: str | None = None,  # noqa: A002
) -> Analysis:
    """Record one result. ``id`` (from `types.new_id`) lets figures be written into the analysis' folder beforehand."""
    require(session, fence)
    row = Analysis(
        run_id=fence.run_id, attempt=fence.attempt, target_run_id=target_run_id, name=name, params=dict(params),
        result=dict(result), figures=list(figures), created_at=now(session), **({} if id is None else {"id": id}),
    )  # fmt: skip
    session.add(row)
    session.flush()
    payload = {"id": row.id, "name": name, "target_run_id": target_run_id}
    events.append(session, fence.run_id, "analysis", payload, fence.attempt)
    return row


def get(session: Session, analysis_id: str) -> Analysis:
    """Return one analysis; raises NotFound."""
    row = session.get(Analysis, analysis_id)
    if row is None:
        raise NotFound(f"there is no analysis {analysis_id[:40]!r}")
    return row


def list_for_run(session: Session, run_id: str) -> list[Analysis]:
    """Return the analyses of a run, oldest first: those made about it, and those made by it."""
    query = select(Analysis).where(or_(Analysis.target_run_id == run_id, Analysis.run_id == run_id))
    return list(session.scalars(query.order_by(Analysis.created_at, Analysis.id)))
