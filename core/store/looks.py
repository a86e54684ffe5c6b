"""Looks: what each evaluation of the held-out suite said, and what the damage rule made of it. Rules are in `core.damage`."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import BindParameter, ColumnElement, Select, bindparam, false, func, select
from sqlalchemy.orm import Session, defer

from core.store import events
from core.store.database import now
from core.store.fencing import Fence, require
from core.store.models import Evaluation, Look, Run


def _counted(*what: ColumnElement[bool], newest: Any) -> list[Any]:
    """How many rows there are and when the newest was made, as columns of another statement."""
    return [select(column).where(*what).scalar_subquery() for column in (func.count(), func.max(newest))]


# Built once: a page asks this every few seconds, and building a statement costs more than running it.
_RUN_ID: BindParameter[str] = bindparam("run_id")
_JUDGED_BY = select(
    Run.state,
    Run.prespecification_id,
    *_counted(Look.run_id == _RUN_ID, Look.superseded == false(), newest=Look.created_at),
    *_counted(
        Evaluation.run_id == _RUN_ID,
        Evaluation.purpose.in_(["base", "base_repeat"]),
        Evaluation.status == "finished",
        Evaluation.superseded == false(),
        newest=Evaluation.finished_at,
    ),
).where(Run.id == _RUN_ID, Run.deleted_at.is_(None))


def add(
    session: Session,
    fence: Fence,
    *,
    step: int,
    number: int,
    evaluation_id: str,
    suite: str,
    n: int,
    lost: float,
    gained: float,
    state: str,
    reference: str = "base",
    checkpoint_sha256: str | None = None,
    accuracy: float | None = None,
    ci_low: float | None = None,
    ci_high: float | None = None,
    d_histogram: Mapping[str, int] | None = None,
    statistic: float | None = None,
    threshold: float | None = None,
    decided: bool = False,
    draw: Sequence[Mapping[str, Any]] = (),
    rule_state: Mapping[str, Any] | None = None,
) -> Look:
    """Record one look: ``number`` is t from 1; ``draw`` holds {"item_id", "b", "c", "d"} of every item it used."""
    require(session, fence)
    row = Look(
        run_id=fence.run_id, attempt=fence.attempt, step=step, number=number, evaluation_id=evaluation_id, suite=suite,
        reference=reference, n=n, lost=lost, gained=gained, state=state, checkpoint_sha256=checkpoint_sha256, accuracy=accuracy,
        ci_low=ci_low, ci_high=ci_high, d_histogram=dict(d_histogram or {}), statistic=statistic, threshold=threshold,
        decided=decided, draw=[dict(entry) for entry in draw], rule_state=dict(rule_state or {}), created_at=now(session),
    )  # fmt: skip
    session.add(row)
    session.flush()
    payload = {"id": row.id, "step": step, "number": number, "suite": suite, "state": state, "decided": decided}
    events.append(session, fence.run_id, "look", payload, fence.attempt)
    return row


def list_(
    session: Session,
    run_id: str,
    current: bool = True,
    *,
    suite: str | None = None,
    reference: str | None = None,
    whole: bool = True,
) -> list[Look]:
    """Return a run's looks by step; with ``current=False`` also those that a resume went back behind.

    With ``whole=False`` the large documents ``draw`` and ``rule_state`` are read only when touched, within the session.
    """
    query = _query(run_id, current, suite, reference).order_by(Look.step, Look.attempt, Look.created_at)
    return list(session.scalars(query if whole else query.options(defer(Look.draw), defer(Look.rule_state))))


def last(session: Session, run_id: str, *, suite: str | None = None, reference: str | None = None) -> Look | None:
    """Return the current look with the highest step."""
    query = _query(run_id, True, suite, reference)
    return session.scalar(query.order_by(Look.step.desc(), Look.attempt.desc(), Look.created_at.desc()).limit(1))


def _query(run_id: str, current: bool, suite: str | None, reference: str | None) -> Select[Look]:
    wanted = {Look.suite: suite, Look.reference: reference}
    query = select(Look).where(Look.run_id == run_id)
    query = query.where(*(column == value for column, value in wanted.items() if value is not None))
    return query.where(Look.superseded == false()) if current else query


def judged_by(session: Session, run_id: str) -> tuple[Any, ...] | None:
    """Return what changes whenever the judgement of a run's damage may; None where there is no run of exactly this id.

    Looks and evaluations are only added or superseded, never changed, so their numbers and newest times tell them all.
    """
    row = session.execute(_JUDGED_BY, {"run_id": run_id}).one_or_none()
    return None if row is None else tuple(row)
