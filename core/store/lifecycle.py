"""Moving a run from state to state: the one place that does it, shared by `runs` (users) and `queue` (workers).

It keeps what must change together: the state, its timestamps, the lease, the attempt that held it, the doorbell and the
audit event. Who may ask for which step is decided by the callers and by `states.TRANSITIONS`.
"""

from typing import Any

from sqlalchemy import select, update
from sqlalchemy.orm import Session, aliased

from core.store import evaluations, events
from core.store.database import now
from core.store.errors import NotFound
from core.store.models import Attempt, Outbox, Run, RunAfter, Worker
from core.store.states import FINAL, HELD, AttemptState, RunState, check


def lock(session: Session, run_id: str) -> Run:
    """Return the run, fresh and locked until the transaction ends; raises :class:`NotFound`."""
    query = select(Run).where(Run.id == run_id, Run.deleted_at.is_(None)).with_for_update(key_share=True)
    run = session.scalar(query.execution_options(populate_existing=True))
    if run is None:
        raise NotFound(f"there is no run {run_id}")
    return run


def move(
    session: Session,
    run: Run,
    to: RunState,
    *,
    reason: str | None = None,
    error: dict[str, Any] | None = None,
    attempt_state: AttemptState = AttemptState.FINISHED,
    counted: bool = True,
) -> Run:
    """Take a locked ``run`` to state ``to``; raises IllegalTransition.

    Leaving the held states clears the lease (so the holder's fence turns stale) and ends the attempt as ``attempt_state``.
    A final run keeps no evaluation that was cut off: nobody will finish it.
    """
    old = RunState(run.state)
    check(run.id, old, to)
    at = now(session)
    run.state = to
    if old in HELD and to not in HELD:
        _end_attempt(session, run, at=at, state=attempt_state, reason=reason, counted=counted)
    if to == RunState.QUEUED:
        run.queued_at, run.cancel_requested_at, run.pause_requested_at = at, None, None
        ring(session, run.id, at)
    if to in FINAL:
        run.finished_at, run.outcome_reason, run.error = at, reason, error
        evaluations.drop_unfinished(session, run.id)
    session.flush()
    payload = {"from": old, "to": to} | ({"reason": reason} if reason else {}) | ({"error": error} if error else {})
    events.append(session, run.id, "state", payload, attempt=run.attempt or None)
    if to == RunState.SUCCEEDED:
        _ring_dependents(session, run.id, at)
    elif to in FINAL:
        fail_orphans(session)
    return run


def fail_orphans(session: Session) -> list[str]:
    """Fail every queued run that comes after one that ended without success, then those after it, and return their ids.

    A run that another transaction holds is passed over; the sweep asks again.
    """
    before = aliased(Run)
    lost = select(before.id, before.state).join(RunAfter, RunAfter.after_id == before.id)
    lost = lost.where(before.state.in_(FINAL - {RunState.SUCCEEDED})).order_by(before.seq)
    orphans = select(Run).where(
        Run.state == RunState.QUEUED, lost.where(RunAfter.run_id == Run.id).correlate(Run).exists()
    )
    orphans = orphans.order_by(Run.seq).limit(1).with_for_update(skip_locked=True, key_share=True, of=Run)
    failed = []
    # One at a time, because each may leave others behind; a long chain would be too deep for recursion.
    while (run := session.scalar(orphans.execution_options(populate_existing=True))) is not None:
        cause, state = session.execute(lost.where(RunAfter.run_id == run.id).limit(1)).one()
        message = f"run {cause} had to succeed first, but it is {state}; mend it and post this recipe again"
        error = {"category": "user", "code": "dependency_failed", "message": message, "log_tail": None}
        check(run.id, RunState(run.state), RunState.FAILED)
        run.state, run.finished_at, run.outcome_reason, run.error = RunState.FAILED, now(session), message, error
        session.flush()
        payload = {"from": RunState.QUEUED, "to": RunState.FAILED, "reason": message, "error": error}
        events.append(session, run.id, "state", payload, attempt=run.attempt or None)
        failed.append(run.id)
    return failed


def ring(session: Session, run_id: str, at: float) -> None:
    """Write an outbox row: a doorbell to send after the commit."""
    session.add(Outbox(run_id=run_id, created_at=at))


def _ring_dependents(session: Session, run_id: str, at: float) -> None:
    waiting = select(RunAfter.run_id).join(Run, Run.id == RunAfter.run_id)
    for dependent in session.scalars(waiting.where(RunAfter.after_id == run_id, Run.state == RunState.QUEUED)):
        ring(session, dependent, at)


def _end_attempt(
    session: Session, run: Run, *, at: float, state: AttemptState, reason: str | None, counted: bool
) -> None:
    run.lease_worker, run.lease_expires_at, run.phase = None, None, None
    ending = {"state": state, "ended_at": at, "end_reason": reason or run.state, "counted": counted}
    session.execute(update(Attempt).where(Attempt.run_id == run.id, Attempt.number == run.attempt).values(**ending))
    session.execute(update(Worker).where(Worker.current_run_id == run.id).values(current_run_id=None))
