"""What a run looks like from outside: its document, whether anybody is at work on it, and when it may end.

Reads only. Facts come from the store; the judgement (alive, silent, lost) and the wording are made here.
"""

from itertools import pairwise
from statistics import median
from typing import Any

from sqlalchemy.orm import Session

from api.times import iso
from core.settings import Settings
from core.store import events, metrics, runs
from core.store.database import now
from core.store.models import Attempt, Run
from core.store.states import FINAL, HELD, RunState

_ETA_STEPS = 20


def summary(run: Run, tags: list[str]) -> dict[str, Any]:
    """A run as lists show it."""
    return {
        "id": run.id,
        "kind": run.kind,
        "name": run.name,
        "state": run.state,
        "model": run.model,
        "tags": tags,
        "priority": run.priority,
        "created_at": iso(run.created_at),
        "queued_at": iso(run.queued_at),
        "started_at": iso(run.started_at),
        "finished_at": iso(run.finished_at),
        "progress": {
            "phase": run.phase,
            "done": run.progress_done,
            "total": run.progress_total,
            "unit": run.progress_unit,
        },
        "step": run.step,
        "exploratory": run.exploratory,
        "parent_id": run.parent_id,
        "outcome_reason": run.outcome_reason,
        "recipe_hash": run.recipe_hash,
    }


def document(session: Session, run: Run, settings: Settings) -> dict[str, Any]:
    """Everything about one run that is not a series."""
    at = now(session)
    attempts = runs.attempts(session, run.id)
    last = attempts[-1] if attempts else None
    queue = waiting(session, run)
    return summary(run, runs.tags_of(session, [run.id])[run.id]) | {
        "liveness": _liveness(run, last, at, settings, queue),
        "queue": queue,
        "eta": _eta(session, run, at),
        "attempt": _attempt(last) if last else None,
        "attempts": [_attempt(attempt) for attempt in attempts],
        "device": last.device if last else None,
        "recipe": run.recipe,
        "submitted": run.submitted,
        "family_hash": run.family_hash,
        "run_of_family": run.run_of_family,
        "parent_step": run.parent_step,
        "recipe_diff": run.recipe_diff,
        "error": _error(run.error),
        "prespecification_id": run.prespecification_id,
        "probe": run.probe,
        "probe_report": _probe_report(session, run),
        "after": run.after,
        "max_attempts": run.max_attempts,
        "cancel_requested_at": iso(run.cancel_requested_at),
        "pause_requested_at": iso(run.pause_requested_at),
        "links": _links(run),
    }


def _probe_report(session: Session, run: Run) -> dict[str, Any] | None:
    """What the last finished attempt of a probe measured."""
    reports = events.payloads(session, run.id, "probe_report") if run.probe else []
    return reports[-1] if reports else None


def waiting(session: Session, run: Run) -> dict[str, Any] | None:
    """Place in the queue and the reason; None for a run that is not queued."""
    if run.state != RunState.QUEUED:
        return None
    position, why = runs.queue_position(session, run.id)
    return {"position": position, "why": why}


def _attempt(attempt: Attempt) -> dict[str, Any]:
    return {
        "number": attempt.number,
        "state": attempt.state,
        "worker_id": attempt.worker_id,
        "device": attempt.device,
        "versions": attempt.versions,
        "started_at": iso(attempt.started_at),
        "heartbeat_at": iso(attempt.heartbeat_at),
        "ended_at": iso(attempt.ended_at),
        "end_reason": attempt.end_reason,
        "resumed_from_step": attempt.resumed_from_step,
    }


def _liveness(
    run: Run, last: Attempt | None, at: float, settings: Settings, queue: dict[str, Any] | None
) -> dict[str, Any]:
    state, reason = _judgement(run, last, at, settings, queue)
    return {
        "state": state,
        "reason": reason,
        "worker_id": run.lease_worker,
        "heartbeat_at": iso(last.heartbeat_at) if last else None,
        "lease_expires_at": iso(run.lease_expires_at),
    }


def _judgement(
    run: Run, last: Attempt | None, at: float, settings: Settings, queue: dict[str, Any] | None
) -> tuple[str, str]:
    if queue is not None:
        return "waiting", str(queue["why"])
    if run.state in FINAL:
        return "ended", run.outcome_reason or f"the run is {run.state}"
    if run.state not in HELD or last is None:
        return "paused", "paused; POST /runs/{id}/resume puts it back into the queue"
    left = (run.lease_expires_at or at) - at
    silence = max(0.0, at - last.heartbeat_at)
    if left <= 0:
        return "lost", f"worker {run.lease_worker} lost its lease {-left:.0f} s ago; the sweeper will re-queue the run"
    if silence > 2 * settings.heartbeat_s:
        return "silent", f"worker {run.lease_worker} was last heard {silence:.0f} s ago; its lease ends in {left:.0f} s"
    return "alive", f"worker {run.lease_worker} was heard {silence:.0f} s ago"


def _eta(session: Session, run: Run, at: float) -> dict[str, Any] | None:
    """Remaining steps times the median of the recent times from step to step; a median leaves the odd look out."""
    total = run.recipe.get("max_steps")
    if run.state != RunState.RUNNING or run.kind != "train" or not run.step or not total or run.step >= total:
        return None
    first = max(1, run.step - _ETA_STEPS)
    recent = metrics.curves(
        session, run.id, keys=["step_time"], from_step=first, to_step=run.step, max_points=_ETA_STEPS + 1
    )
    curve = recent.get("step_time")
    points = curve.points if curve else []
    times = [(point[0], point[2]) for point in points]
    rates = [(late[1] - early[1]) / (late[0] - early[0]) for early, late in pairwise(times)]
    if not rates:
        return None
    seconds = max(0.0, median(rates) * (total - run.step))
    return {
        "seconds": seconds,
        "at": iso(at + seconds),
        "basis": f"median of the last {len(rates)} steps; looks not counted",
    }


def _error(error: dict[str, Any] | None) -> dict[str, Any] | None:
    return None if error is None else {name: error.get(name) for name in ("category", "code", "message", "log_tail")}


def _links(run: Run) -> dict[str, str]:
    root = f"/runs/{run.id}"
    names = ["curves", "damage-stop", "looks", "evals", "rollouts", "checkpoints", "analyses", "events", "logs"]
    links = {"self": root} | {name: f"{root}/{name}" for name in names}
    if run.prespecification_id:
        links["prespecification"] = f"/prespecifications/{run.prespecification_id}"
    if run.parent_id:
        links["parent"] = f"/runs/{run.parent_id}"
    return links
