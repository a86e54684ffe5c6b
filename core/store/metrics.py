"""Curves: record points, take them back into history on a resume, read them thinned.

Thinning keeps the steps that are multiples of a power of two, the finest that leaves at most `max_points` of them. Strides of
powers of two are nested, so while a run grows points may leave a thinned curve but never move or appear in between.
A step's `level` (trailing zero bits) is stored and indexed, so reading a thinned curve touches only the rows it returns.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import BindParameter, ColumnElement, Select, bindparam, case, false, func, literal, select, true, update
from sqlalchemy.orm import Session

from core.store.database import insert_for, now
from core.store.errors import BadFilter
from core.store.fencing import Fence, require
from core.store.models import Attempt, Checkpoint, Evaluation, Event, Look, Metric, MetricSeries, Rollout, Run

STEP_ZERO_LEVEL = 62
CURRENT = "current"
_MARKED_EVENTS = {"jump": "jump", "update_skipped": "skip"}

# Built once: a page asks for these every few seconds, and building a statement costs as much as running it. They read only the
# columns that are shown; a look's draw is a large document.
_RUN_ID: BindParameter[str] = bindparam("run_id")
_LOOK_STEPS = select(Look.step).where(Look.run_id == _RUN_ID, Look.superseded == false())
_LOOK_MARKS = select(Look.step, Look.id, Look.suite, Look.reference, Look.state, Look.decided).where(
    Look.run_id == _RUN_ID, Look.superseded == false()
)
_CHECKPOINT_MARKS = select(Checkpoint.step, Checkpoint.id, Checkpoint.deleted_at).where(
    Checkpoint.run_id == _RUN_ID, Checkpoint.superseded == false()
)
_ATTEMPT_MARKS = select(Attempt.resumed_from_step, Attempt.number, Attempt.started_at).where(
    Attempt.run_id == _RUN_ID, Attempt.number > 1
)
_EVENT_MARKS = (
    select(Event.type, Event.payload)
    .where(Event.run_id == _RUN_ID, Event.type.in_(list(_MARKED_EVENTS)))
    .order_by(Event.seq)
)


_SERIES = select(MetricSeries.key, MetricSeries.count, MetricSeries.first_step, MetricSeries.last_step).where(
    MetricSeries.run_id == _RUN_ID
)


class _Reads:
    """The statements that read points of one curve in one view; ``view`` says which attempts' points those are."""

    def __init__(self, *view: ColumnElement[bool]) -> None:
        metric = Metric.__table__.c  # the table's columns, not the class': hundreds of rows need no mapping
        points = select(metric.step, metric.value, metric.at, metric.nonfinite).where(
            metric.run_id == _RUN_ID, metric.key == bindparam("key"), *view
        )
        within = metric.step.between(bindparam("low"), bindparam("high"))
        levels = metric.level.in_(bindparam("levels", expanding=True))
        self.grid = points.where(levels, within).limit(bindparam("limit"))
        self.grid_size = select(func.count()).select_from(self.grid.with_only_columns(literal(1)).subquery())
        self.steps = points.where(levels, metric.step.in_(bindparam("steps", expanding=True)))
        self.first = points.where(within).order_by(metric.step.asc()).limit(1)
        self.last = points.where(within).order_by(metric.step.desc()).limit(1)


_CURRENT = _Reads(Metric.superseded == false())
_OF_ATTEMPT = _Reads(Metric.superseded.in_([false(), true()]), Metric.attempt == bindparam("attempt"))


class Point(NamedTuple):
    """One point: ``value`` is None when the number was not finite, and ``nonfinite`` then says "nan", "inf" or "-inf"."""

    step: int
    value: float | None
    at: float
    nonfinite: str | None


@dataclass(frozen=True)
class Curve:
    """A thinned curve. ``total`` counts the whole series, whatever range was asked for; ``shown`` is len(points)."""

    points: list[Point]
    total: int
    shown: int


@dataclass(frozen=True)
class Mark:
    """Something to draw at a step: kind is look, checkpoint, jump, attempt or skip."""

    kind: str
    step: int
    detail: dict[str, Any]


def level_of(step: int) -> int:
    """Return the number of trailing zero bits of ``step``; step 0 lies on every stride and gets 62."""
    return STEP_ZERO_LEVEL if step == 0 else (step & -step).bit_length() - 1


def record(session: Session, fence: Fence, step: int, values: Mapping[str, float]) -> None:
    """Store one point per key at ``step`` for this attempt. Recording a step again replaces its values.

    A point of an older attempt at the same step and key is superseded, so the current view has each step once.
    """
    require(session, fence)
    if step < 0:
        raise ValueError(f"step is {step}; steps are counted from 0")
    if not values:
        return
    at = now(session)
    here = (Metric.run_id == fence.run_id, Metric.step == step, Metric.key.in_(values))
    present = set(session.scalars(select(Metric.key).where(*here, Metric.superseded == false())))
    if present:
        older = update(Metric).where(*here, Metric.attempt < fence.attempt, Metric.superseded == false())
        session.execute(older.values(superseded=true()).execution_options(synchronize_session=False))
    rows = [
        {"run_id": fence.run_id, "key": key, "step": step, "attempt": fence.attempt, "level": level_of(step), "at": at}
        | _stored(value)
        for key, value in values.items()
    ]
    insert = insert_for(session)
    points = insert(Metric)
    replaced = {name: points.excluded[name] for name in ("value", "nonfinite", "at", "superseded")}
    key_columns = [Metric.run_id, Metric.key, Metric.step, Metric.attempt]
    session.execute(points.on_conflict_do_update(index_elements=key_columns, set_=replaced), rows)
    series = insert(MetricSeries)
    grown = {
        "count": MetricSeries.count + series.excluded.count,
        "first_step": _smaller(MetricSeries.first_step, series.excluded.first_step),
        "last_step": _larger(MetricSeries.last_step, series.excluded.last_step),
    }
    session.execute(
        series.on_conflict_do_update(index_elements=[MetricSeries.run_id, MetricSeries.key], set_=grown),
        [
            {
                "run_id": fence.run_id,
                "key": key,
                "count": int(key not in present),
                "first_step": step,
                "last_step": step,
            }
            for key in values
        ],
    )


def supersede_after(session: Session, fence: Fence, step: int) -> None:
    """Take back what older attempts recorded after ``step``, the step this attempt resumes from; -1 takes back everything.

    Marks metrics, rollouts, looks, evaluations and checkpoints with a higher step as superseded, and deletes none.
    Evaluations of eval runs have no step and stay.
    """
    require(session, fence)
    for table in (Metric, Rollout, Look, Evaluation, Checkpoint):
        gone = update(table).where(
            table.run_id == fence.run_id, table.attempt < fence.attempt, table.step > step, table.superseded == false()
        )
        session.execute(
            gone.values(superseded=true()).execution_options(
                synchronize_session="fetch" if table is not Metric else False
            )
        )
    _recount_series(session, fence.run_id, step)
    back = update(Run).where(Run.id == fence.run_id, Run.step > step)
    session.execute(back.values(step=step if step >= 0 else None))


def keys(session: Session, run_id: str) -> list[str]:
    """Return the names of a run's curves, sorted."""
    return list(
        session.scalars(select(MetricSeries.key).where(MetricSeries.run_id == run_id).order_by(MetricSeries.key))
    )


def curves(
    session: Session,
    run_id: str,
    *,
    keys: Sequence[str] | None = None,
    from_step: int | None = None,
    to_step: int | None = None,
    max_points: int = 500,
    attempt: int | str = CURRENT,
) -> dict[str, Curve]:
    """Return the named curves (all when ``keys`` is None), each thinned to ``max_points`` by itself.

    ``from_step`` and ``to_step`` are inclusive. The first and last point of the range and the points at looks are
    always kept, beyond ``max_points`` if need be. ``attempt`` is "current" (what holds after all resumes) or the number of
    one attempt. Keys without a point give an empty curve.
    """
    if max_points < 1:
        raise BadFilter(f"max_points is {max_points}; it must be at least 1")
    sizes = _sizes(session, run_id, keys, attempt)
    wanted = sorted(sizes) if keys is None else list(dict.fromkeys(keys))
    looks = set(session.scalars(_LOOK_STEPS, {"run_id": run_id}))
    result = {}
    for key in wanted:
        size = sizes.get(key)
        if size is None:
            result[key] = Curve([], 0, 0)
            continue
        low = max(size.first_step, size.first_step if from_step is None else from_step)
        high = min(size.last_step, size.last_step if to_step is None else to_step)
        whole = (low, high) == (size.first_step, size.last_step)
        view = _View(run_id, key, attempt, low, high, whole)
        points = _thinned(session, view, size.count, max_points, looks)
        result[key] = Curve(points, size.count, len(points))
    return result


def marks(session: Session, run_id: str) -> list[Mark]:
    """Return what to draw on a run's curves, by step: current looks and checkpoints, resumes, jumps and skipped updates."""
    of_run = {"run_id": run_id}
    found = [
        Mark("look", step, {"id": look, "suite": suite, "reference": reference, "state": state, "decided": decided})
        for step, look, suite, reference, state, decided in session.execute(_LOOK_MARKS, of_run)
    ]
    found += [
        Mark("checkpoint", step, {"id": checkpoint, "deleted": deleted_at is not None})
        for step, checkpoint, deleted_at in session.execute(_CHECKPOINT_MARKS, of_run)
    ]
    found += [
        Mark("attempt", resumed_from_step or 0, {"number": number, "started_at": started_at})
        for resumed_from_step, number, started_at in session.execute(_ATTEMPT_MARKS, of_run)
    ]
    # A replayed step tells again what it told before; the last telling counts.
    latest = {(_MARKED_EVENTS[kind], int(told["step"])): told for kind, told in session.execute(_EVENT_MARKS, of_run)}
    found += [
        Mark(kind, step, {name: value for name, value in payload.items() if name != "step"})
        for (kind, step), payload in latest.items()
    ]
    return sorted(found, key=lambda mark: (mark.step, mark.kind))


@dataclass(frozen=True)
class _Size:
    count: int
    first_step: int
    last_step: int


@dataclass(frozen=True)
class _View:
    """One curve, one attempt's or the current view, within [low, high]; ``whole`` when those are its first and last step."""

    run_id: str
    key: str
    attempt: int | str
    low: int
    high: int
    whole: bool

    @property
    def reads(self) -> _Reads:
        return _CURRENT if self.attempt == CURRENT else _OF_ATTEMPT

    def parameters(self, **more: Any) -> dict[str, Any]:
        named = {"run_id": self.run_id, "key": self.key, "low": self.low, "high": self.high, **more}
        return named if self.attempt == CURRENT else {**named, "attempt": self.attempt}

    def grid_levels(self, stride_level: int) -> list[int]:
        # Levels are listed rather than bounded below: each is one range of the index by step, so a narrow window late in a
        # long run reads its own rows only. No step up to `high` but 0 has a level above its bit length.
        return [*range(stride_level, max(self.high.bit_length(), stride_level)), STEP_ZERO_LEVEL]


def _thinned(session: Session, view: _View, total: int, max_points: int, looks: set[int]) -> list[Point]:
    if view.low > view.high:
        return []
    in_range = min(total, view.high - view.low + 1)
    guess = max(0, math.ceil(math.log2(in_range / max_points)))
    rows = _grid(session, view, guess, max_points)
    while len(rows) > max_points:
        guess += 1
        rows = _grid(session, view, guess, max_points)
    finest = guess
    # A curve with a point at every step cannot be shown on a finer stride: its size alone gave the guess.
    dense = view.whole and total == view.high - view.low + 1
    while not dense and finest > 0 and _fits(session, view, finest - 1, max_points):
        finest -= 1
    if finest < guess:
        rows = _grid(session, view, finest, max_points)
    if finest > 0:
        rows |= _always_kept(session, view, looks)
    return [rows[step] for step in sorted(rows)]


def _grid(session: Session, view: _View, stride_level: int, max_points: int) -> dict[int, Point]:
    """Return the points on the stride 2**stride_level, at most one more than ``max_points``."""
    wanted = view.parameters(levels=view.grid_levels(stride_level), limit=max_points + 1)
    return _points(session, view.reads.grid, wanted)


def _fits(session: Session, view: _View, stride_level: int, max_points: int) -> bool:
    """Return whether the stride 2**stride_level leaves at most ``max_points``; stops counting at one more."""
    wanted = view.parameters(levels=view.grid_levels(stride_level), limit=max_points + 1)
    return (session.scalar(view.reads.grid_size, wanted) or 0) <= max_points


def _always_kept(session: Session, view: _View, looks: set[int]) -> dict[int, Point]:
    """Return the first and last point in range, and those at looks."""
    steps = {step for step in looks if view.low <= step <= view.high} | ({view.low, view.high} if view.whole else set())
    # A step's level follows from it; naming both leads the planner to the rows instead of along the whole series.
    levels = {level_of(step) for step in steps}
    wanted = view.parameters(levels=sorted(levels), steps=sorted(steps))
    kept = _points(session, view.reads.steps, wanted) if steps else {}
    if not view.whole:
        for end in (view.reads.first, view.reads.last):
            kept |= _points(session, end, view.parameters())
    return kept


def _points(session: Session, query: Select[Any], parameters: Mapping[str, Any]) -> dict[int, Point]:
    return {row[0]: Point(*row) for row in session.execute(query, parameters)}


def _sizes(session: Session, run_id: str, keys: Sequence[str] | None, attempt: int | str) -> dict[str, _Size]:
    if attempt == CURRENT:
        found = session.execute(_SERIES, {"run_id": run_id})
        return {key: _Size(*size) for key, *size in found if keys is None or key in keys}
    if isinstance(attempt, int):
        # One attempt's own view is asked for seldom, so it is counted.
        query = select(Metric.key, func.count(), func.min(Metric.step), func.max(Metric.step)).group_by(Metric.key)
        query = query.where(Metric.run_id == run_id, Metric.attempt == attempt)
        query = query if keys is None else query.where(Metric.key.in_(keys))
    else:
        raise BadFilter(f'attempt is {attempt!r}; allowed are "current" and the number of an attempt')
    return {key: _Size(*size) for key, *size in session.execute(query)}


def _recount_series(session: Session, run_id: str, step: int) -> None:
    """Count anew the series that reached beyond ``step``; a resume is rare enough to read them."""
    reaching = select(MetricSeries).where(MetricSeries.run_id == run_id, MetricSeries.last_step > step)
    for series in session.scalars(reaching.execution_options(populate_existing=True)):
        query = select(func.count(), func.min(Metric.step), func.max(Metric.step))
        query = query.where(Metric.run_id == run_id, Metric.key == series.key, Metric.superseded == false())
        count, first, last = session.execute(query).one()
        if count:
            series.count, series.first_step, series.last_step = count, first, last
        else:
            session.delete(series)
    session.flush()


def _stored(value: float) -> dict[str, Any]:
    value = float(value)
    if math.isfinite(value):
        return {"value": value, "nonfinite": None, "superseded": False}
    name = "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    return {"value": None, "nonfinite": name, "superseded": False}


def _smaller(left: Any, right: Any) -> Any:
    return case((left < right, left), else_=right)


def _larger(left: Any, right: Any) -> Any:
    return case((left > right, left), else_=right)
