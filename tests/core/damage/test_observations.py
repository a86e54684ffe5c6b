"""Counting one look."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.damage.observations import Observation, RuleError, mean_scores, noise_floor, paired_difference, tally

# No deadline: how long an example takes says nothing on a busy machine.
STEADY = settings(deadline=None, max_examples=50)

PAIRS = st.lists(st.tuples(st.sampled_from([0.0, 0.5, 1.0]), st.sampled_from([0.0, 1.0])), min_size=1, max_size=30)


def test_lost_and_gained_are_the_positive_and_negative_parts_of_d():
    counted = tally(
        [Observation("a", 1, 0), Observation("b", 0.5, 0), Observation("c", 0.5, 1), Observation("d", 1, 1)]
    )
    assert (counted.lost, counted.gained, counted.delta) == (1.5, 0.5, -0.25)
    assert counted.d_histogram() == {"-0.5": 1, "0": 1, "0.5": 1, "1": 1}
    assert (counted.lost_items, counted.gained_items) == (("a", "b"), ("c",))


@STEADY
@given(PAIRS)
def test_the_counts_agree_with_one_another(pairs):
    counted = tally([Observation(f"i{k}", b, c) for k, (b, c) in enumerate(pairs)])
    assert sum(counted.d_histogram().values()) == counted.n == len(pairs)
    assert counted.delta * counted.n == pytest.approx(counted.gained - counted.lost)
    assert counted.ci[0] <= counted.delta <= counted.ci[1]


def test_the_interval_is_bonett_and_prices():
    """n = 100, 10 lost, 4 gained: p12 = 11/102, p21 = 5/102, by the published formula."""
    p12, p21 = 11 / 102, 5 / 102
    half = 1.959963984540054 * ((p12 + p21 - (p12 - p21) ** 2) / 102) ** 0.5
    delta, (low, high) = paired_difference([(-1.0, 4), (0.0, 86), (1.0, 10)])
    assert delta == pytest.approx(-0.06)
    assert (low, high) == pytest.approx((p21 - p12 - half, p21 - p12 + half))


def test_base_runs_are_averaged_and_their_flips_are_the_noise_floor():
    first, second = {"a": 1.0, "b": 0.0, "c": 1.0}, {"a": 1.0, "b": 1.0, "c": 1.0}
    assert mean_scores([first, second]) == {"a": 1.0, "b": 0.5, "c": 1.0}
    assert noise_floor(first, second) == pytest.approx(1 / 3)


@pytest.mark.parametrize("runs", [[], [{"a": 1.0}, {"b": 1.0}]])
def test_base_runs_over_different_items_are_refused(runs):
    with pytest.raises(RuleError, match="base run"):
        mean_scores(runs)
