"""The fixed-panel rule against scipy, and its spending of alpha."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest

from core.damage.mcnemar import McNemarSpending, one_sided_p
from core.damage.observations import Observation, RuleError

# No deadline: how long an example takes says nothing on a busy machine.
STEADY = settings(deadline=None, max_examples=50)

FLAG = st.sampled_from([0.0, 1.0])


def observations(pairs):
    return [Observation(f"i{k:03d}", b, c) for k, (b, c) in enumerate(pairs)]


def flips(lost, gained, n=200):
    return observations([(1, 0)] * lost + [(0, 1)] * gained + [(1, 1)] * (n - lost - gained))


@STEADY
@given(st.integers(0, 120), st.integers(0, 120))
def test_the_p_value_equals_scipys_exact_binomial_test(lost, gained):
    expected = binomtest(lost, lost + gained, 0.5, alternative="greater").pvalue if lost + gained else 1.0
    assert one_sided_p(lost, gained) == pytest.approx(expected, rel=1e-9)


def test_a_small_case_by_hand():
    """P(Bin(4, 1/2) >= 3) = 5/16."""
    assert one_sided_p(3, 1) == 5 / 16


@pytest.mark.parametrize("lost", range(0, 60, 3))
def test_it_decides_exactly_at_alpha_over_t(lost):
    decision = McNemarSpending(200, 200, 30).look({}, flips(lost, 10))
    p = binomtest(lost, lost + 10, 0.5, alternative="greater").pvalue if lost else 1.0
    assert decision.decided == (p <= 0.05 / 30)
    assert decision.watch == decision.state["watch"] == (p <= 0.2 / 30)
    assert decision.margin_rejected is None


def test_after_the_planned_looks_nothing_decides():
    rule, state = McNemarSpending(20, 20, 2), {}
    for _ in range(2):
        state = rule.look(state, flips(0, 0, 20)).state
    late = rule.look(state, flips(20, 0, 20))
    assert late.statistic < late.threshold
    assert not late.decided


def test_a_decision_stays():
    rule = McNemarSpending(20, 20, 2)
    first = rule.look({}, flips(15, 0, 20))
    assert first.decided
    assert rule.look(first.state, flips(0, 0, 20)).decided


def test_other_items_than_the_panel_are_refused():
    rule = McNemarSpending(200, 200, 30)
    state = rule.look({}, flips(1, 1)).state
    with pytest.raises(RuleError, match="panel"):
        rule.look(state, [Observation(f"other{k}", 1, 1) for k in range(200)])


def test_the_mean_of_base_runs_is_refused():
    with pytest.raises(RuleError, match="first base run"):
        McNemarSpending(1, 1, 1).look({}, [Observation("a", 0.5, 1)])


def test_the_first_base_run_is_the_reference():
    rule = McNemarSpending(2, 2, 1)
    assert rule.base_scores([{"a": 1.0, "b": 0.0}, {"a": 0.0, "b": 0.0}]) == {"a": 1.0, "b": 0.0}


def test_the_panel_is_the_same_at_every_look():
    rule, pool = McNemarSpending(50, 20, 5), [f"i{k}" for k in range(50)]
    assert rule.items(b"k", 1, "aa", pool) == rule.items(b"k", 4, "bb", pool)
    assert len(set(rule.items(b"k", 1, "aa", pool))) == 20


LOOKS = st.lists(st.lists(st.tuples(FLAG, FLAG), min_size=5, max_size=5), min_size=1, max_size=6)


@STEADY
@given(LOOKS, st.integers(0, 6), st.randoms(use_true_random=False))
def test_order_and_a_round_trip_through_json_change_nothing(looks, cut, random):
    rule, plain, resumed = McNemarSpending(5, 5, 4), {}, {}
    for number, look in enumerate(looks):
        one = rule.look(plain, observations(look))
        if number == cut:
            resumed = json.loads(json.dumps(resumed, allow_nan=False))
        two = rule.look(resumed, random.sample(observations(look), 5))
        assert one == two
        plain, resumed = one.state, two.state


@STEADY
@given(st.integers(0, 80), st.integers(0, 80))
def test_losing_one_more_item_never_raises_p(lost, gained):
    assert one_sided_p(lost + 1, gained) <= one_sided_p(lost, gained)


def test_the_earliest_stop_needs_enough_items_to_lose():
    """2^-9 > 0.05/30 >= 2^-10."""
    rule = McNemarSpending(200, 200, 30)
    assert rule.earliest_stop(9) is None
    assert rule.earliest_stop(10) == 1
