"""Runs as their owners see them: create, find, list, cancel, pause, resume, delete, and where they stand in the queue.

What workers do to runs (claim, heartbeat, finish, interrupt) is in `queue`.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Select, func, select, update
from sqlalchemy import delete as sql_delete
from sqlalchemy.orm import Session

from core.store import events, regrades
from core.store.database import now, serialise
from core.store.errors import Ambiguous, IllegalTransition, NotFound
from core.store.fencing import Fence, require
from core.store.lifecycle import fail_orphans, lock, move, ring
from core.store.models import (
    Attempt,
    Checkpoint,
    Evaluation,
    ItemRecord,
    Metric,
    MetricSeries,
    Rollout,
    Run,
    RunAfter,
    RunTag,
    Worker,
)
from core.store.paging import Page, checked_limit, int_cursor, page_of
from core.store.states import FINAL, HELD, RunState
from core.store.types import ID_LENGTH

_PREFIX = re.compile(rf"[0-9a-f]{{1,{ID_LENGTH}}}")
WORKER_FRESH_S = 120.0
PHASE_LENGTH = 32
"""Characters of a phase; SQLite takes more, PostgreSQL does not."""


def create(
    session: Session,
    *,
    recipe: Mapping[str, Any],
    submitted: Mapping[str, Any],
    recipe_hash: str,
    family_hash: str,
    model: str | None,
    name: str,
    kind: str,
    priority: int = 0,
    tags: Sequence[str] = (),
    after: Sequence[str] = (),
    max_attempts: int = 3,
    parent_id: str | None = None,
    parent_step: int | None = None,
    recipe_diff: Mapping[str, Any] | None = None,
    exploratory: bool = False,
    prespecification_id: str | None = None,
    probe: bool = False,
    state: RunState = RunState.QUEUED,
) -> Run:
    """Store an accepted recipe as a run, with its doorbell and its first event.

    ``after`` holds run ids (or unique prefixes) that must succeed first; unknown ones raise :class:`NotFound`, and when one
    has already ended otherwise the new run fails at once. The recipe's ``device.kind`` says which workers may claim the run.
    """
    at = now(session)
    after_ids = list(dict.fromkeys(get(session, other).id for other in after))
    serialise(session, f"family:{family_hash}")
    family = select(func.count()).select_from(Run).where(Run.family_hash == family_hash, Run.probe.is_(False))
    earlier = session.scalar(family) or 0  # a probe is no try at the recipe
    run = Run(
        kind=kind, name=name, state=state, recipe=dict(recipe), submitted=dict(submitted), recipe_hash=recipe_hash,
        family_hash=family_hash, model=model, device_kind=_device_kind(recipe), priority=priority, created_at=at,
        parent_id=parent_id, parent_step=parent_step,
        queued_at=at if state == RunState.QUEUED else None, recipe_diff=None if recipe_diff is None else dict(recipe_diff),
        exploratory=exploratory, max_attempts=max_attempts, after=after_ids, prespecification_id=prespecification_id,
        run_of_family=earlier + 1, probe=probe,
    )  # fmt: skip
    session.add(run)
    session.flush()
    session.add_all([RunTag(run_id=run.id, tag=tag) for tag in dict.fromkeys(tags)])
    session.add_all([RunAfter(run_id=run.id, after_id=other) for other in after_ids])
    if state == RunState.QUEUED:
        ring(session, run.id, at)
    payload = {"kind": kind, "name": name, "recipe_hash": recipe_hash, "run_of_family": run.run_of_family}
    events.append(session, run.id, "run_created", payload | ({"parent_id": parent_id} if parent_id else {}))
    if after_ids:
        fail_orphans(session)
    return run


def get(session: Session, run_id: str, *, deleted: bool = False) -> Run:
    """Return the run with this id or unique id prefix, raising :class:`NotFound` or :class:`Ambiguous`.

    ``deleted=True`` also finds tombstones.
    """
    rows: Sequence[Run] = []
    if _PREFIX.fullmatch(run_id):
        query = select(Run).where(Run.id.startswith(run_id)).order_by(Run.seq).limit(3)
        rows = session.scalars(query if deleted else query.where(Run.deleted_at.is_(None))).all()
    if not rows:
        raise NotFound(f"there is no run {run_id[:40]!r}")
    if len(rows) > 1:
        raise Ambiguous(
            f"{run_id!r} begins the ids of several runs ({', '.join(row.id for row in rows)}); give more characters"
        )
    return rows[0]


def tags_of(session: Session, run_ids: Sequence[str]) -> dict[str, list[str]]:
    """Return the sorted tags of each given run."""
    tags: dict[str, list[str]] = {run_id: [] for run_id in run_ids}
    query = select(RunTag.run_id, RunTag.tag).where(RunTag.run_id.in_(run_ids)).order_by(RunTag.tag)
    for run_id, tag in session.execute(query):
        tags[run_id].append(tag)
    return tags


def list_page(
    session: Session,
    *,
    after: str | int | None = None,
    limit: int = 50,
    kind: str | None = None,
    state: str | None = None,
    tag: str | None = None,
    model: str | None = None,
    created_from: float | None = None,
    created_to: float | None = None,
) -> Page[Run]:
    """Return runs, newest first, without deleted ones; ``created_from`` is inclusive, ``created_to`` exclusive."""
    query = select(Run).where(Run.deleted_at.is_(None)).order_by(Run.seq.desc()).limit(checked_limit(limit) + 1)
    wanted = {Run.kind: kind, Run.state: state, Run.model: model}
    query = query.where(*(column == value for column, value in wanted.items() if value is not None))
    if tag is not None:
        query = query.where(Run.id.in_(select(RunTag.run_id).where(RunTag.tag == tag)))
    if created_from is not None:
        query = query.where(Run.created_at >= created_from)
    if created_to is not None:
        query = query.where(Run.created_at < created_to)
    cursor = int_cursor(after)
    if cursor is not None:
        query = query.where(Run.seq < cursor)
    return page_of(session.scalars(query).all(), limit, lambda run: str(run.seq))


def others(session: Session, run: Run, *, unfinished: bool = False) -> list[Run]:
    """Return every other run that is not deleted, oldest first; with ``unfinished`` those that are not final."""
    query = select(Run).where(Run.deleted_at.is_(None), Run.id != run.id).order_by(Run.seq)
    return list(session.scalars(query.where(Run.state.not_in(FINAL)) if unfinished else query))


def attempts(session: Session, run_id: str) -> list[Attempt]:
    """Return the attempts of a run, first to last."""
    return list(session.scalars(select(Attempt).where(Attempt.run_id == run_id).order_by(Attempt.number)))


def children(session: Session, run_id: str) -> list[Run]:
    """Return the forks of a run, oldest first."""
    query = select(Run).where(Run.parent_id == run_id, Run.deleted_at.is_(None)).order_by(Run.seq)
    return list(session.scalars(query))


def transition(
    session: Session, run_id: str, to: RunState, *, reason: str | None = None, error: dict[str, Any] | None = None
) -> Run:
    """Take a run to state ``to``; raises :class:`IllegalTransition`. Only `queue.claim` makes a run `running`."""
    run = lock(session, run_id)
    if to == RunState.RUNNING:
        raise IllegalTransition(f"run {run_id} becomes running only when a worker claims it")
    return move(session, run, to, reason=reason, error=error)


def request_cancel(session: Session, run_id: str) -> Run:
    """Cancel a queued or paused run at once; ask a running one to checkpoint and end. Asking twice changes nothing."""
    run = lock(session, run_id)
    if run.state == RunState.CANCELLING:
        return run
    at = now(session)
    to = RunState.CANCELLING if RunState(run.state) in HELD else RunState.CANCELLED
    move(session, run, to, reason="cancelled by request" if to == RunState.CANCELLED else None)
    run.cancel_requested_at = at
    session.flush()
    return run


def request_pause(session: Session, run_id: str) -> Run:
    """Ask a running run to checkpoint and let go. Asking twice changes nothing; other states raise IllegalTransition."""
    run = lock(session, run_id)
    if run.state == RunState.PAUSING:
        return run
    at = now(session)
    move(session, run, RunState.PAUSING)
    run.pause_requested_at = at
    session.flush()
    return run


def resume(session: Session, run_id: str) -> Run:
    """Put a paused run back into the queue, with its doorbell; it goes on as a new attempt."""
    run = lock(session, run_id)
    if run.state != RunState.PAUSED:
        raise IllegalTransition(f"run {run_id} is {run.state}; only a paused run can be resumed")
    return move(session, run, RunState.QUEUED)


def delete(session: Session, run_id: str) -> Run:
    """Delete a final run: its curves, rollouts and item records go, its checkpoints are marked deleted.

    The row stays as a tombstone that `get` and `list_page` no longer find, with its events, looks, evaluations and
    prespecification: what was claimed and found stays on record. Files are the caller's to remove, after the commit.
    """
    run = lock(session, run_id)
    if RunState(run.state) not in FINAL:
        raise IllegalTransition(f"run {run_id} is {run.state}; only a final run can be deleted: cancel it first")
    at = now(session)
    run.deleted_at = at
    evaluations = select(Evaluation.id).where(Evaluation.run_id == run_id)
    regrades.delete_for_run(session, run_id)
    session.execute(sql_delete(ItemRecord).where(ItemRecord.evaluation_id.in_(evaluations)))
    session.execute(sql_delete(Rollout).where(Rollout.run_id == run_id))
    session.execute(sql_delete(Metric).where(Metric.run_id == run_id))
    session.execute(sql_delete(MetricSeries).where(MetricSeries.run_id == run_id))
    kept = update(Checkpoint).where(Checkpoint.run_id == run_id, Checkpoint.deleted_at.is_(None))
    session.execute(kept.values(deleted_at=at))
    session.flush()
    events.append(session, run_id, "run_deleted", {"state": run.state})
    return run


def progress(
    session: Session,
    fence: Fence,
    *,
    phase: str,
    done: int | None,
    total: int | None,
    unit: str | None,
    step: int | None = None,
) -> None:
    """Record what the attempt is doing; ``step`` is the last finished step and stays as it was when None."""
    require(session, fence)
    values = {"phase": phase, "progress_done": done, "progress_total": total, "progress_unit": unit}
    session.execute(
        update(Run).where(Run.id == fence.run_id).values(**values | ({} if step is None else {"step": step}))
    )


def queue_position(session: Session, run_id: str) -> tuple[int, str]:
    """Return (place in the queue, why it waits): place 1 is next, 0 means the run is not waiting or cannot be claimed yet."""
    run = get(session, run_id)
    if run.state != RunState.QUEUED:
        return 0, f"the run is {run.state}"
    blockers = session.scalars(_unfinished_before(run.id)).all()
    if blockers:
        return 0, f"waits for run {blockers[0].id}, which is {blockers[0].state}: it must succeed first"
    ahead = session.scalar(_claimable_ahead(run)) or 0
    alive = session.scalars(select(Worker).where(Worker.heartbeat_at >= now(session) - WORKER_FRESH_S)).all()
    suitable = [worker for worker in alive if run.device_kind in (None, (worker.device or {}).get("kind"))]
    ready = [worker for worker in suitable if worker.unready_reason is None]
    if not ready and (alive or not ahead):
        return ahead + 1, _no_worker(run, alive, suitable)
    if ahead:
        return (
            ahead + 1,
            f"{ahead} run{'s' if ahead > 1 else ''} with higher priority or posted earlier will start first",
        )
    busy = [worker.current_run_id for worker in ready if worker.current_run_id]
    if len(busy) == len(ready):
        return 1, f"next; every worker is busy (run {busy[0]})"
    return 1, "next; a worker will claim it shortly"


def claimable(kind: str | None) -> tuple[Any, ...]:
    """Return the SQL conditions under which a worker on a device of ``kind`` may claim a run.

    A run whose recipe names a kind of device is for that kind alone, also a CPU recipe on a card: jobs compute on their
    worker's device, so it would fit no plan and give other bits. A run that names none, an analysis, is for any worker.
    """
    anywhere = Run.device_kind.is_(None)
    suits = anywhere if kind is None else anywhere | (Run.device_kind == kind)
    return (*_waiting(), suits)


def _waiting() -> tuple[Any, ...]:
    return (Run.state == RunState.QUEUED, Run.deleted_at.is_(None), ~_blocked())


def _no_worker(run: Run, alive: Sequence[Worker], suitable: Sequence[Worker]) -> str:
    """Say why no live worker can take ``run`` at all."""
    if not alive:
        return "no worker is alive; start one"
    if suitable:
        return f"every worker that could take it has stopped claiming: {suitable[0].unready_reason}"
    if run.device_kind == "cuda":
        return "no live worker has a CUDA card; start one with DRIFTLINE_GPU naming the card"
    return f"no live worker has the device the recipe asks for; start one with DRIFTLINE_GPU={run.device_kind}"


def _device_kind(recipe: Mapping[str, Any]) -> str | None:
    device = recipe.get("device")
    return device.get("kind") if isinstance(device, Mapping) else None


def _blocked() -> Any:
    """Return the SQL condition that some run in `after` has not succeeded, correlated to `Run`."""
    before = Run.__table__.alias("before")
    query = select(RunAfter.run_id).join(before, before.c.id == RunAfter.after_id)
    return query.where(RunAfter.run_id == Run.id, before.c.state != RunState.SUCCEEDED).correlate(Run).exists()


def _unfinished_before(run_id: str) -> Select[Run]:
    query = select(Run).join(RunAfter, RunAfter.after_id == Run.id).where(RunAfter.run_id == run_id)
    return query.where(Run.state != RunState.SUCCEEDED).order_by(Run.seq)


def _claimable_ahead(run: Run) -> Select[int]:
    sooner = (Run.priority > run.priority) | ((Run.priority == run.priority) & (Run.seq < run.seq))
    rivals = claimable(run.device_kind) if run.device_kind else _waiting()
    return select(func.count()).select_from(Run).where(*rivals, sooner)
