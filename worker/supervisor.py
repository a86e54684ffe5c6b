"""Supervises one attempt: starts its runner, keeps its lease, relays requests, and ends with the run decided in the store.

It never imports what a job needs and never looks at results. Whatever happens, the runner's whole process group is dead
when it returns, and the run is final, paused, queued again, or somebody else's. It reacts to events (the runner ended,
the lease keeper has news) and looks at the clock at least once per ``poll_s``.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

from sqlalchemy.exc import SQLAlchemyError

from core.jobs import Request
from core.settings import Settings
from core.store import queue
from core.store.database import Database, Fence
from core.store.errors import StaleAttempt
from worker.exits import RunnerExit
from worker.lease import LeaseKeeper
from worker.logtail import log_tail
from worker.process import RunnerProcess, describe_status

DRAIN_GRACE_S = 120.0
"""Seconds a runner has to reach its checkpoint when the worker is told to stop."""

STOP_GRACE_S = 600.0
"""Seconds a runner has to reach its checkpoint after a cancel or a pause; then it counts as stuck."""

EXIT_GRACE_S = 15.0
"""Seconds between losing hold of the run (an outcome is recorded) and the end of the process; then it counts as stuck."""

_LAST_WORDS = 300
"""Characters of a crashed runner's last line that are told in the reason."""

log = logging.getLogger(__name__)

Command = Callable[[queue.Claim], Sequence[str]]


class Drain(Protocol):
    """Whether this worker was told to stop."""

    @property
    def requested(self) -> bool: ...


class Ending(StrEnum):
    """How supervision ended."""

    RECORDED = "recorded"
    """The runner itself recorded how its attempt ended."""
    INTERRUPTED = "interrupted"
    """The supervisor interrupted the attempt: a crash, or a runner that did not obey."""
    BUSY = "busy"
    """The supervisor interrupted the attempt before it began, because another process holds the card or the run."""
    LOST = "lost"
    """The lease was lost; nothing was recorded."""


@dataclass(frozen=True)
class Timing:
    """The supervisor's patience, in seconds."""

    lease_ttl_s: float
    heartbeat_s: float
    poll_s: float = 1.0
    drain_grace_s: float = DRAIN_GRACE_S
    stop_grace_s: float = STOP_GRACE_S
    exit_grace_s: float = EXIT_GRACE_S

    @classmethod
    def of(cls, settings: Settings) -> "Timing":
        """The service's timing; it looks for requests more often than it heartbeats."""
        return cls(settings.lease_ttl_s, settings.heartbeat_s, poll_s=min(1.0, settings.heartbeat_s / 2))


@dataclass(frozen=True)
class Order:
    """What to supervise: a fresh claim (made at ``claimed_at``, monotonic), and how its runner is started."""

    claim: queue.Claim
    claimed_at: float
    command: Sequence[str]
    env: Mapping[str, str]
    log_file: Path


def supervise(order: Order, db: Database, timing: Timing, drain: Drain) -> Ending:
    """Run one attempt to its end. Errors of the store at the very end are left to the lease, which then expires."""
    fence = order.claim.fence
    wake = threading.Event()
    keeper = LeaseKeeper(
        db,
        fence,
        ttl_s=timing.lease_ttl_s,
        heartbeat_s=timing.heartbeat_s,
        poll_s=timing.poll_s,
        claimed_at=order.claimed_at,
        wake=wake.set,
    )
    try:
        runner = RunnerProcess(order.command, order.env, order.log_file, on_exit=wake.set)
    except OSError as error:
        message = f"the runner could not be started: {error}"
        return _interrupt(db, fence, message, _system_error("runner_not_started", message, order.log_file))
    log.info("run %s attempt %s: runner %s started", fence.run_id, fence.attempt, runner.pid)
    keeper.start()
    try:
        stopped = _watch(runner, keeper, timing, drain, wake)
    finally:
        status = runner.end()
        keeper.stop()
    log.info(
        "run %s attempt %s: runner %s, %s", fence.run_id, fence.attempt, describe_status(status), stopped or "by itself"
    )
    return _settle(db, order, stopped, status)


class _Stopped(StrEnum):
    """Why the supervisor stopped a runner that was still there."""

    LEASE_LOST = "its lease was lost"
    LINGERED = "its attempt was over but it did not end"
    DRAIN_OVERDUE = "it reached no checkpoint in time when the worker was stopped"
    REQUEST_OVERDUE = "it reached no checkpoint in time after it was asked to cancel or pause"


@dataclass
class _Asked:
    """The requests already relayed, each with the moment by which it must have been obeyed."""

    due: dict[Request, float]

    def relay(self, request: Request, runner: RunnerProcess, grace_s: float) -> None:
        if request not in self.due:
            runner.tell(request)
            self.due[request] = time.monotonic() + grace_s

    def overdue(self, now: float) -> _Stopped | None:
        for request, moment in self.due.items():
            if now >= moment:
                return _Stopped.DRAIN_OVERDUE if request == "drain" else _Stopped.REQUEST_OVERDUE
        return None


def _watch(
    runner: RunnerProcess, keeper: LeaseKeeper, timing: Timing, drain: Drain, wake: threading.Event
) -> _Stopped | None:
    """Wait until the runner has ended (None) or must be ended (why)."""
    asked = _Asked({})
    ended_at: float | None = None
    while not runner.exited:
        now = time.monotonic()
        if keeper.lost or now >= keeper.deadline:
            return _Stopped.LEASE_LOST
        if keeper.ended:
            ended_at = ended_at or now
            if now >= ended_at + timing.exit_grace_s:
                return _Stopped.LINGERED
        if keeper.cancel:
            asked.relay("cancel", runner, timing.stop_grace_s)
        if keeper.pause:
            asked.relay("pause", runner, timing.stop_grace_s)
        if drain.requested:
            asked.relay("drain", runner, timing.drain_grace_s)
        overdue = asked.overdue(now)
        if overdue is not None:
            return overdue
        wake.wait(timing.poll_s)
        wake.clear()
    return None


def _settle(db: Database, order: Order, stopped: _Stopped | None, status: int) -> Ending:
    """Decide what the store must be told, now that the runner is dead."""
    fence = order.claim.fence
    match stopped:
        case _Stopped.LEASE_LOST:
            return Ending.LOST
        case _Stopped.DRAIN_OVERDUE:
            return _interrupt(
                db, fence, f"the worker was stopped and the runner killed: {stopped}", None, counted=False
            )
        case _Stopped.REQUEST_OVERDUE | _Stopped.LINGERED:
            return _interrupt(db, fence, f"the runner was killed: {stopped}", None)
    match status:
        case RunnerExit.STALE:
            return Ending.LOST
        case RunnerExit.BUSY:
            reason = "another process on this machine still holds the card or the run; the runner's log names the lock"
            ending = _interrupt(db, fence, reason, None, counted=False)
            return Ending.BUSY if ending == Ending.INTERRUPTED else ending
        case RunnerExit.RECORDED | RunnerExit.DRAINED:
            # Normally stale by now, because the runner recorded its outcome; if not, the runner broke its promise.
            code, message = "no_outcome", f"the runner ended with {describe_status(status)} but recorded no outcome"
        case RunnerExit.SOFTWARE:
            # The runner's last words are the exception that ended it: a full disk, for example, is known by them alone.
            words = log_tail(order.log_file, lines=1)[:_LAST_WORDS]
            code, message = "runner_crashed", f"the runner crashed: {describe_status(status)}; its log ends: {words}"
        case _:
            code, message = "runner_crashed", f"the runner crashed: {describe_status(status)}"
    return _interrupt(db, fence, message, _system_error(code, message, order.log_file))


def _interrupt(
    db: Database, fence: Fence, reason: str, error: dict[str, Any] | None, *, counted: bool = True
) -> Ending:
    try:
        with db.write() as session:
            queue.interrupt(session, fence, reason=reason, error=error, counted=counted)
    except StaleAttempt:
        return Ending.RECORDED
    except SQLAlchemyError as failure:
        log.warning("run %s: could not record %r (%s); its lease will expire", fence.run_id, reason, failure)
        return Ending.LOST
    log.warning("run %s attempt %s was interrupted: %s", fence.run_id, fence.attempt, reason)
    return Ending.INTERRUPTED


def _system_error(code: str, message: str, log_file: Path) -> dict[str, Any]:
    return {"category": "system", "code": code, "message": message, "log_tail": log_tail(log_file)}
