"""Curves: what is stored, what a resume takes back, and how they are thinned."""

import math
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import event, insert, select

from core.store import checkpoints, evaluations, events, looks, metrics, queue, rollouts, runs
from core.store.database import Database, Fence
from core.store.errors import BadFilter
from core.store.models import Metric, MetricSeries
from core.store.types import new_id

SHA = "d" * 64


def _fill(db: Database, fence: Fence, steps: list[int], key: str = "loss", look_steps: tuple[int, ...] = ()) -> None:
    with db.fenced(fence) as session:
        for step in steps:
            metrics.record(session, fence, step, {key: float(step)})
        for number, step in enumerate(look_steps, 1):
            _look(session, fence, step, number)


def _look(session, fence: Fence, step: int, number: int, **changes):
    evaluation = evaluations.start(
        session, fence, step=step, purpose="look", model_ref="m", suite="holdout", mode="greedy", n_items=1
    )  # fmt: skip
    values = {"suite": "holdout", "n": 1, "lost": 0, "gained": 0, "state": "no_damage_shown"} | changes
    return looks.add(session, fence, step=step, number=number, evaluation_id=evaluation, **values)


def _curve(db: Database, run_id: str, key: str = "loss", **options) -> metrics.Curve:
    with db.read() as session:
        return metrics.curves(session, run_id, keys=[key], **options)[key]


def _steps(curve: metrics.Curve) -> list[int]:
    return [point.step for point in curve.points]


def _thinned_by_hand(steps: list[int], max_points: int, looks_at: tuple[int, ...] = ()) -> list[int]:
    """The definition, by brute force: the finest stride 1, 2, 4 ... with at most max_points multiples, plus ends and looks."""
    stride = 1
    while sum(step % stride == 0 for step in steps) > max_points:
        stride *= 2
    ends = {min(steps), max(steps)}
    return [step for step in steps if step % stride == 0 or step in ends or step in looks_at]


@pytest.mark.parametrize(("step", "level"), [(0, 62), (1, 0), (2, 1), (3, 0), (12, 2), (1024, 10), (2**40 + 2**7, 7)])
def test_the_level_is_the_number_of_trailing_zero_bits(step: int, level: int) -> None:
    assert metrics.level_of(step) == level


def test_a_short_curve_is_whole_and_carries_values_and_times(db: Database, held) -> None:
    _fill(db, held.fence, list(range(10)))
    curve = _curve(db, held.run_id)
    assert _steps(curve) == list(range(10))
    assert [point.value for point in curve.points] == [float(step) for step in range(10)]
    assert (curve.total, curve.shown) == (10, 10)
    assert abs(curve.points[0].at - db.now()) < 60


def test_values_that_are_not_finite_are_null_with_a_name(db: Database, held) -> None:
    with db.fenced(held.fence) as session:
        for step, value in enumerate([math.nan, math.inf, -math.inf, 0.5]):
            metrics.record(session, held.fence, step, {"loss": value})
    assert [(point.value, point.nonfinite) for point in _curve(db, held.run_id).points] == [
        (None, "nan"), (None, "inf"), (None, "-inf"), (0.5, None)
    ]  # fmt: skip


def test_recording_a_step_again_replaces_it_and_counts_once(db: Database, held) -> None:
    with db.fenced(held.fence) as session:
        metrics.record(session, held.fence, 3, {"loss": math.nan, "reward": 1.0})
        metrics.record(session, held.fence, 3, {"loss": 2.0})
    curve = _curve(db, held.run_id)
    assert [(point.step, point.value, point.nonfinite) for point in curve.points] == [(3, 2.0, None)]
    assert curve.total == 1


def test_negative_steps_are_refused(db: Database, held) -> None:
    with pytest.raises(ValueError, match="step is -1"), db.fenced(held.fence) as session:
        metrics.record(session, held.fence, -1, {"loss": 1.0})


def test_the_max_is_per_key_and_unknown_keys_are_empty(db: Database, held) -> None:
    _fill(db, held.fence, list(range(20)), "a")
    _fill(db, held.fence, list(range(0, 20, 5)), "b")
    with db.read() as session:
        found = metrics.curves(session, held.run_id, keys=["a", "b", "c"], max_points=5)
        assert metrics.keys(session, held.run_id) == ["a", "b"]
        assert set(metrics.curves(session, held.run_id)) == {"a", "b"}
    assert _steps(found["a"]) == [0, 4, 8, 12, 16, 19] == _thinned_by_hand(list(range(20)), 5)
    assert _steps(found["b"]) == [0, 5, 10, 15]  # sparse, so nothing needs to go
    assert found["c"] == metrics.Curve([], 0, 0)


def test_looks_stay_in_a_thinned_curve(db: Database, held) -> None:
    _fill(db, held.fence, list(range(1, 65)), look_steps=(5, 33))
    assert _steps(_curve(db, held.run_id, max_points=4)) == [1, 5, 16, 32, 33, 48, 64]


def test_a_range_is_inclusive_thinned_by_itself_and_keeps_its_own_ends(db: Database, held) -> None:
    _fill(db, held.fence, list(range(100)))
    assert _steps(_curve(db, held.run_id, from_step=37, to_step=41)) == [37, 38, 39, 40, 41]
    curve = _curve(db, held.run_id, from_step=37, to_step=71, max_points=5)
    assert _steps(curve) == _thinned_by_hand(list(range(37, 72)), 5) == [37, 40, 48, 56, 64, 71]
    assert curve.total == 100
    assert _steps(_curve(db, held.run_id, from_step=200)) == []
    assert _steps(_curve(db, held.run_id, from_step=9, to_step=3)) == []
    assert _steps(_curve(db, held.run_id, max_points=1)) == [0, 99]


@given(data=st.data())
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
def test_thinning_equals_its_definition(db: Database, held, data: st.DataObject) -> None:
    steps = sorted(data.draw(st.sets(st.integers(0, 300), min_size=1, max_size=80)))
    max_points = data.draw(st.integers(1, 40))
    key = new_id()
    with db.fenced(held.fence) as session:
        for step in steps:
            metrics.record(session, held.fence, step, {key: 0.0})
    curve = _curve(db, held.run_id, key, max_points=max_points)
    assert curve.total == len(steps)
    assert _steps(curve) == _thinned_by_hand(steps, max_points)


def test_points_leave_but_never_move_or_appear_while_a_run_grows(db: Database, held) -> None:
    before: set[int] = set()
    for end in range(0, 120, 7):
        _fill(db, held.fence, list(range(end, end + 7)))
        shown = set(_steps(_curve(db, held.run_id, max_points=10)))
        older = {step for step in shown if step < end}
        assert older <= before
        before = shown


@pytest.mark.parametrize("bounds", [{}, {"from_step": 3, "to_step": 60}])
def test_a_thinned_curve_is_read_from_the_index_alone(db: Database, held, bounds: dict) -> None:
    """The oracle is SQLite's planner: every statement about metrics goes to its rows by step, the grid within the index."""
    if not db.is_sqlite:
        return
    _fill(db, held.fence, list(range(64)), look_steps=(5,))
    seen: list[tuple[str, tuple]] = []
    event.listen(db.engine, "before_cursor_execute", lambda _c, _k, sql, values, *_: seen.append((sql, values)))
    _curve(db, held.run_id, max_points=8, **bounds)
    plans = []
    with db.engine.connect() as connection:
        for sql, values in [entry for entry in seen if "FROM metrics" in entry[0]]:
            plans.append(
                " ".join(str(row[3]) for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {sql}", values))
            )
    assert all("SCAN metrics" not in plan and re.search(r"SEARCH metrics .*step[=>]", plan) for plan in plans)
    assert "USING COVERING INDEX ix_metrics_level" in plans[0]
    assert "level=? AND step>? AND step<?" in plans[0]


def test_a_long_curve_touches_few_rows(db: Database, held) -> None:
    count = 5000
    rows = [
        {"run_id": held.run_id, "key": "loss", "step": step, "attempt": 1, "level": metrics.level_of(step), "value": 0.0,
         "nonfinite": None, "at": 1.0, "superseded": False}
        for step in range(count)
    ]  # fmt: skip
    with db.write() as session:
        session.execute(insert(Metric), rows)
        session.add(MetricSeries(run_id=held.run_id, key="loss", count=count, first_step=0, last_step=count - 1))
    curve = _curve(db, held.run_id, max_points=500)
    assert _steps(curve) == _thinned_by_hand(list(range(count)), 500)
    assert (curve.total, curve.shown) == (count, 314)


def _second_attempt(db: Database, first, claim, resume_at: int):
    with db.fenced(first.fence) as session:
        queue.interrupt(session, first.fence, reason="test")
    second = claim()
    with db.fenced(second.fence) as session:
        metrics.supersede_after(session, second.fence, resume_at)
    return second


def test_a_resume_takes_back_later_steps_and_deletes_none(db: Database, held, claim) -> None:
    _fill(db, held.fence, list(range(8)))
    _fill(db, held.fence, [6, 7], "late")
    with db.fenced(held.fence) as session:
        runs.progress(session, held.fence, phase="train", done=8, total=20, unit="step", step=7)
    second = _second_attempt(db, held, claim, 4)
    assert _steps(_curve(db, held.run_id)) == [0, 1, 2, 3, 4]
    assert _curve(db, held.run_id).total == 5
    assert _curve(db, held.run_id, "late") == metrics.Curve([], 0, 0)
    with db.read() as session:
        assert runs.get(session, held.run_id).step == 4
    with db.fenced(second.fence) as session:
        for step in range(5, 10):
            metrics.record(session, second.fence, step, {"loss": 100.0 + step})
    current = _curve(db, held.run_id)
    assert [(point.step, point.value) for point in current.points] == [(s, float(s)) for s in range(5)] + [
        (s, 100.0 + s) for s in range(5, 10)
    ]
    assert current.total == 10
    first_view = _curve(db, held.run_id, attempt=1)
    assert (_steps(first_view), first_view.total) == (list(range(8)), 8)
    assert _steps(_curve(db, held.run_id, attempt=2)) == [5, 6, 7, 8, 9]
    assert _curve(db, held.run_id, attempt=3) == metrics.Curve([], 0, 0)


def test_starting_over_takes_back_everything(db: Database, held, claim) -> None:
    _fill(db, held.fence, [0, 1])
    _second_attempt(db, held, claim, -1)
    assert _curve(db, held.run_id).points == []
    with db.read() as session:
        assert runs.get(session, held.run_id).step is None
        assert metrics.keys(session, held.run_id) == []


def test_an_attempt_that_redoes_a_step_replaces_the_older_point(db: Database, held, claim) -> None:
    _fill(db, held.fence, [0, 1, 2])
    second = _second_attempt(db, held, claim, 2)
    with db.fenced(second.fence) as session:
        metrics.record(session, second.fence, 2, {"loss": 22.0})
    curve = _curve(db, held.run_id)
    assert [(point.step, point.value) for point in curve.points] == [(0, 0.0), (1, 1.0), (2, 22.0)]
    assert curve.total == 3


def test_a_resume_takes_back_looks_evaluations_rollouts_and_checkpoints(db: Database, held, claim) -> None:
    sample = {
        "group_index": 0, "item_id": "i", "sample": 0, "prompt_sha256": SHA, "token_ids": [1], "text": "t", "n_tokens": 1,
        "finish_reason": "stop",
    }  # fmt: skip
    with db.fenced(held.fence) as session:
        for step in (10, 20):
            _look(session, held.fence, step, step // 10)
            rollouts.add_step(session, held.fence, step, [sample])
            checkpoints.add(
                session, held.fence, step=step, path=f"p{step}", sha256=f"{step:064d}", files={}, bytes=1, has_optimizer=True,
                provenance={},
            )  # fmt: skip
    _second_attempt(db, held, claim, 10)
    with db.read() as session:
        run_id = held.run_id
        assert [look.step for look in looks.list_(session, run_id)] == [10]
        assert [look.step for look in looks.list_(session, run_id, current=False)] == [10, 20]
        assert [row.step for row in evaluations.list_for_run(session, run_id)] == [10]
        assert len(evaluations.list_for_run(session, run_id, superseded=True)) == 2
        assert [row.step for row in rollouts.page(session, run_id).items] == [10]
        assert [row.step for row in rollouts.page(session, run_id, superseded=True).items] == [10, 20]
        assert [row.step for row in checkpoints.list_(session, run_id)] == [10]
        assert checkpoints.latest(session, run_id).step == 10
        assert session.scalars(select(Metric)).all() == []


def test_marks_name_looks_checkpoints_resumes_jumps_and_skips(db: Database, held, claim) -> None:
    with db.fenced(held.fence) as session:
        _look(session, held.fence, 10, 1)
        checkpoints.add(
            session, held.fence, step=10, path="p", sha256=SHA, files={}, bytes=1, has_optimizer=True, provenance={}
        )  # fmt: skip
        events.append(session, held.run_id, "update_skipped", {"step": 4, "why": "inf"}, 1)
        events.append(session, held.run_id, "update_skipped", {"step": 4, "why": "nan"}, 1)
        events.append(session, held.run_id, "jump", {"step": 12, "n": 20}, 1)
    second = _second_attempt(db, held, claim, 10)
    with db.fenced(second.fence) as session:
        queue.runner_started(session, second.fence, resumed_from_step=10)
    with db.read() as session:
        marks = metrics.marks(session, held.run_id)
    assert [(mark.kind, mark.step) for mark in marks] == [
        ("skip", 4), ("attempt", 10), ("checkpoint", 10), ("look", 10), ("jump", 12)
    ]  # fmt: skip
    assert marks[0].detail == {"why": "nan"}
    assert marks[1].detail["number"] == 2


@pytest.mark.parametrize("bad", [{"max_points": 0}, {"attempt": "newest"}])
def test_bad_requests_are_refused(db: Database, held, bad: dict) -> None:
    with pytest.raises(BadFilter):
        _curve(db, held.run_id, **bad)
