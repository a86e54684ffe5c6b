"""The plain drop at consecutive looks."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.damage.observations import Observation
from core.damage.threshold import Threshold

# No deadline: how long an example takes says nothing on a busy machine.
STEADY = settings(deadline=None, max_examples=50)


def dropped(points, n=100):
    return [Observation(f"i{k}", 1, 0 if k < points else 1) for k in range(n)]


def path(rule, drops):
    state, decided = {}, []
    for drop in drops:
        decision = rule.look(state, dropped(drop))
        state = json.loads(json.dumps(decision.state, allow_nan=False))
        decided.append(decision.decided)
    return decided


def test_it_needs_the_drops_to_be_consecutive():
    rule = Threshold(100, 100, 10, points=5, consecutive=2)
    assert path(rule, [5, 4, 6, 5, 0]) == [False, False, False, True, True]


def test_exactly_the_points_count():
    for points in (5, 7, 29, 57):
        assert path(Threshold(100, 100, 10, points=points, consecutive=1), [points - 1, points]) == [False, True]


@STEADY
@given(st.lists(st.integers(0, 10), min_size=1, max_size=12), st.integers(1, 3))
def test_it_equals_a_scan_of_windows(drops, j):
    rule = Threshold(100, 100, 8, points=5, consecutive=j)
    full = [min(drops[t - j + 1 : t + 1]) >= 5 if j - 1 <= t < 8 else False for t in range(len(drops))]
    assert path(rule, drops) == [any(full[: t + 1]) for t in range(len(drops))]


def test_the_first_drop_is_a_watch():
    assert Threshold(100, 100, 10, points=5).look({}, dropped(6)).watch


@pytest.mark.parametrize(("correct", "earliest"), [(4, None), (5, 2), (None, 2)])
def test_the_earliest_stop_is_the_needed_streak(correct, earliest):
    assert Threshold(100, 100, 10, points=5, consecutive=2).earliest_stop(correct) == earliest
