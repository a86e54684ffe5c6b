"""The state machines of runs and attempts, as enums and one table each. Nothing here touches a database."""

from enum import StrEnum

from core.store.errors import IllegalTransition


class RunState(StrEnum):
    """Where a run stands."""

    QUEUED = "queued"
    """Waits for a worker; has no lease."""
    RUNNING = "running"
    """A worker holds the lease."""
    PAUSING = "pausing"
    """A worker holds the lease and was asked to checkpoint and let go."""
    PAUSED = "paused"
    """Nobody holds the lease; waits until someone resumes or cancels it."""
    CANCELLING = "cancelling"
    """A worker holds the lease and was asked to checkpoint and end."""
    SUCCEEDED = "succeeded"
    """Final: did what the recipe asked, or met one of its `stop` conditions."""
    DAMAGE_STOPPED = "damage_stopped"
    """Final: a damage-stop rule with action `stop` decided."""
    FAILED = "failed"
    """Final: `error` says why."""
    CANCELLED = "cancelled"
    """Final: somebody asked for it."""


class AttemptState(StrEnum):
    """Where one execution of a run stands."""

    CLAIMED = "claimed"
    """A worker holds the lease; the runner process has not reported yet."""
    RUNNING = "running"
    """The runner process has reported."""
    INTERRUPTED = "interrupted"
    """Ended without an outcome of its own: crash, lost worker, or drain."""
    FINISHED = "finished"
    """Ended with an outcome: the run is final or paused."""


HELD = frozenset({RunState.RUNNING, RunState.PAUSING, RunState.CANCELLING})
"""States in which exactly one attempt holds the run's lease."""

FINAL = frozenset({RunState.SUCCEEDED, RunState.DAMAGE_STOPPED, RunState.FAILED, RunState.CANCELLED})
"""States that no run leaves."""

TRANSITIONS: dict[RunState, frozenset[RunState]] = {
    # A claim, a cancellation that needs no worker, or the failure of a run that must succeed first.
    RunState.QUEUED: frozenset({RunState.RUNNING, RunState.CANCELLED, RunState.FAILED}),
    # Back to the queue when the attempt is interrupted; final when the runner reports or attempts are used up.
    RunState.RUNNING: frozenset({RunState.QUEUED, RunState.PAUSING, RunState.CANCELLING}) | FINAL,
    # The runner may reach its end, or be cancelled, before it sees the request; a lost worker leaves the run paused.
    RunState.PAUSING: frozenset({RunState.PAUSED, RunState.CANCELLING}) | FINAL,
    RunState.PAUSED: frozenset({RunState.QUEUED, RunState.CANCELLED}),
    # The runner may reach its end before it sees the request; a lost worker leaves the run cancelled.
    RunState.CANCELLING: FINAL,
    RunState.SUCCEEDED: frozenset(),
    RunState.DAMAGE_STOPPED: frozenset(),
    RunState.FAILED: frozenset(),
    RunState.CANCELLED: frozenset(),
}
"""Every allowed step of a run. Only `queue.claim` makes a run `running`."""

ATTEMPT_TRANSITIONS: dict[AttemptState, frozenset[AttemptState]] = {
    AttemptState.CLAIMED: frozenset({AttemptState.RUNNING, AttemptState.INTERRUPTED, AttemptState.FINISHED}),
    AttemptState.RUNNING: frozenset({AttemptState.INTERRUPTED, AttemptState.FINISHED}),
    AttemptState.INTERRUPTED: frozenset(),
    AttemptState.FINISHED: frozenset(),
}
"""Every allowed step of an attempt."""


def check(run_id: str, old: RunState, new: RunState) -> None:
    """Raise :class:`IllegalTransition`, naming the allowed steps, unless ``TRANSITIONS`` has ``old -> new``."""
    allowed = TRANSITIONS[old]
    if new not in allowed:
        steps = ", ".join(sorted(allowed)) or "nothing: this state is final"
        raise IllegalTransition(f"run {run_id} is {old} and cannot become {new}; from here it can become {steps}")
