"""The queue as workers see it: claim, heartbeat, finish, interrupt, sweep, doorbells, workers and named leases.

The row is the job; a message from the broker only says that it is worth asking. `claim` is one conditional UPDATE, so two
workers can never get the same run; it raises the run's fence, and everything the attempt writes later carries that fence.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session

from core.store import events
from core.store.database import insert_for, now
from core.store.errors import StaleAttempt
from core.store.fencing import Fence, holds, release, require, stale_message
from core.store.lifecycle import fail_orphans, lock, move, ring
from core.store.models import Attempt, Checkpoint, Evaluation, Lease, Outbox, Run, Worker
from core.store.runs import WORKER_FRESH_S, claimable
from core.store.states import HELD, AttemptState, RunState
from core.store.types import clock, new_id

SENT_KEPT_S = 86_400.0
DEAD_WORKERS_KEPT_S = 86_400.0
_ASKED_ONCE = ("eval", "base", "base_repeat")


@dataclass(frozen=True)
class Claim:
    """A run that now belongs to a worker until its lease expires or it gives the run back."""

    run_id: str
    attempt: int
    fence: Fence
    kind: str


@dataclass(frozen=True)
class Signals:
    """What the owner of a run asks its attempt to do: checkpoint first, then end (cancel) or let go (pause)."""

    cancel: bool
    pause: bool


@dataclass(frozen=True)
class SweepReport:
    """Ids of runs whose expired lease was taken back, of queued runs that are rung again, and of those that can never start."""

    expired: list[str]
    rung: list[str]
    orphaned: list[str]


def claim(session: Session, *, worker_id: str, device: Mapping[str, Any] | None, ttl: float) -> Claim | None:
    """Claim the queued run with the highest priority, oldest first, for ``ttl`` seconds; None when nothing is claimable.

    Runs whose `after` runs have not all succeeded are passed over, and so are those for another kind of device than
    ``device["kind"]`` (`runs.claimable`). A worker that was marked unready gets nothing. The fence strictly increases from
    claim to claim.
    """
    if session.scalar(select(Worker.unready_reason).where(Worker.id == worker_id)) is not None:
        return None
    candidate = select(Run.seq).where(*claimable((device or {}).get("kind")))
    candidate = candidate.order_by(Run.priority.desc(), Run.seq).limit(1).with_for_update(skip_locked=True, of=Run)
    values = {
        "state": RunState.RUNNING, "attempt": Run.attempt + 1, "fence": Run.fence + 1, "lease_worker": worker_id,
        "lease_expires_at": clock() + ttl, "started_at": func.coalesce(Run.started_at, clock()),
    }  # fmt: skip
    taken = update(Run).where(Run.seq == candidate.scalar_subquery(), Run.state == RunState.QUEUED).values(**values)
    taken = taken.returning(Run.id, Run.attempt, Run.fence, Run.kind).execution_options(synchronize_session=False)
    row = session.execute(taken).first()
    if row is None:
        return None
    run_id, number, token, kind = row
    at = now(session)
    session.add(
        Attempt(
            run_id=run_id,
            number=number,
            worker_id=worker_id,
            fence=token,
            device=None if device is None else dict(device),
            started_at=at,
            heartbeat_at=at,
        )
    )
    session.execute(update(Worker).where(Worker.id == worker_id).values(current_run_id=run_id))
    events.append(session, run_id, "attempt_claimed", {"worker_id": worker_id, "fence": token}, attempt=number)
    return Claim(run_id=run_id, attempt=number, fence=Fence(run_id, number, token), kind=kind)


def runner_started(
    session: Session,
    fence: Fence,
    *,
    pid: int | None = None,
    versions: Mapping[str, Any] | None = None,
    resumed_from_step: int | None = None,
) -> None:
    """Record that the attempt's runner process is at work; may be called again to add what was not known yet."""
    require(session, fence)
    known = {
        "runner_pid": pid,
        "versions": None if versions is None else dict(versions),
        "resumed_from_step": resumed_from_step,
    }
    values = {"state": AttemptState.RUNNING} | {name: value for name, value in known.items() if value is not None}
    session.execute(update(Attempt).where(*_this(fence)).values(**values))


def heartbeat(session: Session, fence: Fence, ttl: float) -> Signals:
    """Extend the lease to ``ttl`` seconds from now and return what is asked of the attempt; raises StaleAttempt."""
    extended = update(Run).where(*holds(fence)).values(lease_expires_at=clock() + ttl)
    state = session.execute(extended.returning(Run.state).execution_options(synchronize_session=False)).scalar()
    if state is None:
        raise StaleAttempt(stale_message(fence))
    session.execute(
        update(Attempt).where(*_this(fence)).values(heartbeat_at=clock()).execution_options(synchronize_session=False)
    )
    return Signals(cancel=state == RunState.CANCELLING, pause=state == RunState.PAUSING)


def finish(
    session: Session, fence: Fence, *, state: RunState, reason: str | None = None, error: dict[str, Any] | None = None
) -> Run:
    """End the run in the final ``state``; raises StaleAttempt, or IllegalTransition when ``state`` is not final."""
    require(session, fence)
    run = move(session, lock(session, fence.run_id), RunState(state), reason=reason, error=error)
    _let_go(session, fence)
    return run


def pause_done(session: Session, fence: Fence) -> Run:
    """Let go of a run that was asked to pause, after its checkpoint; one that was cancelled meanwhile is cancelled."""
    require(session, fence)
    run = lock(session, fence.run_id)
    if run.state == RunState.CANCELLING:
        move(session, run, RunState.CANCELLED, reason="cancelled by request")
    else:
        move(session, run, RunState.PAUSED, reason="paused by request")
    _let_go(session, fence)
    return run


def interrupt(
    session: Session, fence: Fence, *, reason: str, error: dict[str, Any] | None = None, counted: bool = True
) -> Run:
    """End the attempt without an outcome: the run goes back to the queue, or fails when its attempts are used up.

    `max_attempts` bounds consecutive attempts that reached no new checkpoint. ``counted=False`` is for a drain asked for by
    the operator, which uses up nothing. A run that was asked to pause or cancel becomes paused or cancelled.
    """
    require(session, fence)
    run = _take_back(session, lock(session, fence.run_id), reason, error, counted)
    _let_go(session, fence)
    return run


def sweep(session: Session, *, ring_after_s: float = 60.0) -> SweepReport:
    """Take back expired leases, fail runs that wait in vain, ring again for idle workers, forget old doorbells and workers.

    A doorbell is lost with its broker or its worker, never heard by a busy worker, and not needed by one that has just
    finished a run, since it asks for the next. So each idle worker is rung for once in ``ring_after_s``, with a queued run
    that it may claim.
    """
    expired = select(Run).where(Run.state.in_(HELD), Run.lease_expires_at < clock()).order_by(Run.seq)
    expired = expired.with_for_update(skip_locked=True, key_share=True).execution_options(populate_existing=True)
    lost = session.scalars(expired).all()
    for run in lost:
        _take_back(session, run, "lease expired: the worker stopped reporting", None, True)
    orphaned = fail_orphans(session)
    at = now(session)
    rung = [
        run_id
        for kind, idle in _idle_workers(session).items()
        for run_id in _ring(session, kind, idle, at, ring_after_s)
    ]
    session.execute(delete(Outbox).where(Outbox.sent_at < at - SENT_KEPT_S))
    session.execute(delete(Worker).where(Worker.heartbeat_at < at - DEAD_WORKERS_KEPT_S))
    return SweepReport(expired=[run.id for run in lost], rung=rung, orphaned=orphaned)


def outbox_pending(session: Session, limit: int = 100) -> list[Outbox]:
    """Return doorbells that were not sent yet, oldest first."""
    return list(session.scalars(select(Outbox).where(Outbox.sent_at.is_(None)).order_by(Outbox.id).limit(limit)))


def outbox_sent(session: Session, ids: Sequence[int]) -> None:
    """Mark doorbells as sent."""
    at = now(session)
    rung = select(Outbox.run_id).where(Outbox.id.in_(ids))
    session.execute(update(Run).where(Run.id.in_(rung)).values(rung_at=at).execution_options(synchronize_session=False))
    sent = update(Outbox).where(Outbox.id.in_(ids)).values(sent_at=at, tries=Outbox.tries + 1)
    session.execute(sent.execution_options(synchronize_session=False))


def outbox_failed(session: Session, ids: Sequence[int]) -> None:
    """Count a failed try to send; the doorbells stay pending."""
    failed = update(Outbox).where(Outbox.id.in_(ids)).values(tries=Outbox.tries + 1)
    session.execute(failed.execution_options(synchronize_session=False))


def register_worker(
    session: Session, *, hostname: str, pid: int, device: Mapping[str, Any] | None, worker_id: str | None = None
) -> str:
    """Record a worker process and return its id, a new one unless the worker has one already."""
    at = now(session)
    worker_id = worker_id or new_id()
    known = None if device is None else dict(device)
    session.add(Worker(id=worker_id, hostname=hostname, pid=pid, device=known, started_at=at, heartbeat_at=at))
    session.flush()
    return worker_id


def worker_heartbeat(session: Session, worker_id: str) -> bool:
    """Say that the worker is alive; False when its row is gone, as after a day without a heartbeat."""
    alive = update(Worker).where(Worker.id == worker_id).values(heartbeat_at=clock()).returning(Worker.id)
    return session.execute(alive.execution_options(synchronize_session=False)).first() is not None


def mark_unready(session: Session, worker_id: str, reason: str) -> None:
    """Have the worker claim nothing more until it is started anew, and say why."""
    session.execute(update(Worker).where(Worker.id == worker_id).values(unready_reason=reason))


def remove_worker(session: Session, worker_id: str) -> None:
    """Forget a worker that ends in good order; its attempts keep its id."""
    session.execute(delete(Worker).where(Worker.id == worker_id))


def live_workers(session: Session, max_age_s: float) -> list[Worker]:
    """Return workers whose heartbeat is at most ``max_age_s`` old, oldest worker first."""
    query = select(Worker).where(Worker.heartbeat_at >= clock() - max_age_s).order_by(Worker.started_at, Worker.id)
    return list(session.scalars(query))


def acquire_named_lease(session: Session, name: str, owner: str, ttl: float) -> bool:
    """Take or extend the lease ``name``; False when another owner holds it and it has not expired."""
    taking = insert_for(session)(Lease).values(name=name, owner=owner, expires_at=clock() + ttl)
    mine_or_free = (Lease.owner == owner) | (Lease.expires_at < clock())
    changes = {"owner": taking.excluded.owner, "expires_at": taking.excluded.expires_at}
    taking = taking.on_conflict_do_update(index_elements=[Lease.name], set_=changes, where=mine_or_free)
    return session.execute(taking.returning(Lease.name)).first() is not None


def release_named_lease(session: Session, name: str, owner: str) -> None:
    """Give the lease ``name`` up, if ``owner`` holds it."""
    session.execute(delete(Lease).where(Lease.name == name, Lease.owner == owner))


def attempts_without_progress(session: Session, run_id: str) -> int:
    """Return how many attempts in a row, up to the last, were interrupted without getting further than any before.

    Getting further means a checkpoint at a higher step than every earlier attempt's (step 0 is nobody's progress, since every
    attempt that starts over reaches it), or an evaluation finished that no later attempt repeats: an eval run's, or the base
    model's. Pauses and uncounted interruptions neither add nor reset.
    """
    reached = select(Checkpoint.attempt, func.max(Checkpoint.step)).where(Checkpoint.run_id == run_id)
    steps = {row[0]: row[1] for row in session.execute(reached.group_by(Checkpoint.attempt))}
    finished = select(Evaluation.attempt).where(Evaluation.run_id == run_id, Evaluation.status == "finished")
    evaluated = set(session.scalars(finished.where(Evaluation.purpose.in_(_ASKED_ONCE))))
    best, failures = 0, 0
    for attempt in session.scalars(select(Attempt).where(Attempt.run_id == run_id).order_by(Attempt.number)):
        step = steps.get(attempt.number, 0)
        if step > best or attempt.number in evaluated:
            best, failures = max(step, best), 0
        elif attempt.state == AttemptState.INTERRUPTED and attempt.counted:
            failures += 1
    return failures


def _take_back(session: Session, run: Run, reason: str, error: dict[str, Any] | None, counted: bool) -> Run:
    match RunState(run.state):
        case RunState.CANCELLING:
            to, why, failure = RunState.CANCELLED, f"cancelled by request; {reason}", None
        case RunState.PAUSING:
            to, why, failure = RunState.PAUSED, reason, None
        case _:
            to, why, failure = RunState.QUEUED, reason, None
            ending = {"state": AttemptState.INTERRUPTED, "counted": counted}
            this = (Attempt.run_id == run.id, Attempt.number == run.attempt)
            session.execute(update(Attempt).where(*this).values(**ending))
            session.flush()
            if attempts_without_progress(session, run.id) >= run.max_attempts and counted:
                to = RunState.FAILED
                failure = error or _used_up(run, reason)
    return move(session, run, to, reason=why, error=failure, attempt_state=AttemptState.INTERRUPTED, counted=counted)


def _used_up(run: Run, reason: str) -> dict[str, Any]:
    message = f"{run.max_attempts} attempts in a row ended without a new checkpoint; the last: {reason}"
    return {"category": "system", "code": "attempts_exhausted", "message": message, "log_tail": None}


def _idle_workers(session: Session) -> Counter[str | None]:
    """Count the live, ready workers without a run by the kind of their device; the lease says who has a run."""
    at_work = select(Run.lease_worker).where(Run.state.in_(HELD), Run.lease_worker.is_not(None))
    idle = select(Worker.device).where(Worker.heartbeat_at >= clock() - WORKER_FRESH_S, Worker.unready_reason.is_(None))
    return Counter((device or {}).get("kind") for device in session.scalars(idle.where(Worker.id.not_in(at_work))))


def _ring(session: Session, kind: str | None, idle: int, at: float, ring_after_s: float) -> list[str]:
    """Ring for ``idle`` workers on devices of ``kind``, less the doorbells on their way; return the runs rung for."""
    unsent = Run.id.in_(select(Outbox.run_id).where(Outbox.sent_at.is_(None)))
    recent = unsent | (func.coalesce(Run.rung_at, Run.queued_at) >= at - ring_after_s)
    on_their_way = session.scalar(select(func.count()).select_from(Run).where(*claimable(kind), recent)) or 0
    silent = select(Run.id).where(*claimable(kind), ~recent).order_by(Run.priority.desc(), Run.seq)
    rung = list(session.scalars(silent.limit(max(0, idle - on_their_way))))
    for run_id in rung:
        ring(session, run_id, at)
    session.flush()
    return rung


def _this(fence: Fence) -> tuple[Any, ...]:
    return (Attempt.run_id == fence.run_id, Attempt.number == fence.attempt)


def _let_go(session: Session, fence: Fence) -> None:
    release(session, fence)
