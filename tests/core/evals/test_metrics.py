import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest, t

from core.evals.metrics import Mean, average_at_k, mean_interval, mean_pass_at_k, pass_at_k, wilson


@pytest.mark.parametrize(("correct", "total"), [(0, 10), (10, 10), (3, 10), (81, 263), (1, 1), (500, 1000)])
@pytest.mark.parametrize("confidence", [0.9, 0.95, 0.99])
def test_wilson_agrees_with_scipy(correct, total, confidence):
    reference = binomtest(correct, total).proportion_ci(confidence, method="wilson")
    interval = wilson(correct, total, confidence)
    assert (interval.low, interval.high) == pytest.approx((reference.low, reference.high), abs=1e-12)


def test_wilson_of_a_published_example():
    interval = wilson(81, 263)  # Newcombe 1998, table I, method 3
    assert (round(interval.low, 4), round(interval.high, 4)) == (0.2553, 0.3662)


@pytest.mark.parametrize(("correct", "total"), [(-1, 3), (4, 3), (0, 0)])
def test_impossible_counts_are_refused(correct, total):
    with pytest.raises(ValueError, match="correct"):
        wilson(correct, total)


def test_average_is_over_items_and_its_error_is_over_items_not_samples():
    scores = [[1, 1, 1, 1], [0, 0, 0, 0], [1, 0, 1, 0], [1, 1, 0, 1]]
    means = np.array([1.0, 0.0, 0.5, 0.75])
    found = average_at_k(scores)
    assert found.mean == pytest.approx(means.mean())
    assert found.standard_error == pytest.approx(means.std(ddof=1) / 2)
    assert average_at_k([samples * 10 for samples in scores]) == found


def test_items_with_unequal_samples_count_alike():
    assert average_at_k([[1], [0, 0, 0]]).mean == 0.5


def test_clusters_widen_the_error_by_the_sandwich_formula():
    scores, clusters = [[1], [1], [0], [0], [1], [0]], ["a", "a", "b", "b", "c", "c"]
    deviations = np.array([0.5, 0.5, -0.5, -0.5, 0.5, -0.5])
    sums = np.array([deviations[:2].sum(), deviations[2:4].sum(), deviations[4:].sum()])
    found = average_at_k(scores, clusters)
    assert found.clusters == 3
    assert found.standard_error == pytest.approx(math.sqrt(3 / 2 * (sums**2).sum()) / 6)
    assert average_at_k(scores, list(range(6))) == average_at_k(scores)


def test_one_cluster_has_no_error_and_empty_items_are_refused():
    assert average_at_k([[1, 0]]).standard_error is None
    with pytest.raises(ValueError, match="at least one sample"):
        average_at_k([[1], []])
    with pytest.raises(ValueError, match="cluster names"):
        average_at_k([[1]], ["a", "b"])


@pytest.mark.parametrize("n", [1, 2, 5, 7])
def test_pass_at_k_equals_the_share_of_all_draws_that_hold_a_correct_one(n):
    for correct in range(n + 1):
        for k in range(1, n + 1):
            draws = list(itertools.combinations(range(n), k))
            share = Fraction(sum(any(index < correct for index in draw) for draw in draws), len(draws))
            assert pass_at_k(n, correct, k) == pytest.approx(float(share), abs=1e-15)


@given(st.integers(1, 200), st.data())
def test_pass_at_1_is_the_accuracy_and_pass_at_k_grows(n, data):
    correct = data.draw(st.integers(0, n))
    assert pass_at_k(n, correct, 1) == pytest.approx(correct / n)
    values = [pass_at_k(n, correct, k) for k in range(1, n + 1)]
    assert values == sorted(values)
    assert values[-1] == float(correct > 0)


def test_mean_pass_at_k_is_over_items():
    assert mean_pass_at_k([(4, 4), (4, 0), (4, 1)], 2).mean == pytest.approx((1 + 0 + 0.5) / 3)
    with pytest.raises(ValueError, match="k = 5"):
        mean_pass_at_k([(4, 1)], 5)


def test_the_interval_of_a_mean_is_students_over_clusters():
    mean = average_at_k([[0.2], [0.9], [0.4], [0.7]])
    low, high = t.interval(0.95, 3, loc=mean.mean, scale=mean.standard_error)
    found = mean_interval(mean)
    assert (found.low, found.high) == pytest.approx((max(0, low), min(1, high)), abs=1e-12)


def test_items_that_all_agree_still_leave_doubt():
    found = mean_interval(average_at_k([[1, 1]] * 30))
    assert (found.low, found.high) == (wilson(30, 30).low, 1.0)
    alike = mean_interval(average_at_k([[0.5]] * 10))
    assert alike.low < 0.5 < alike.high
    assert mean_interval(Mean(1.0, None, 1)) is None


def test_pass_at_k_is_clustered_like_the_average():
    counts, clusters = [(4, 4), (4, 4), (4, 0), (4, 1)], ["a", "a", "b", "c"]
    assert mean_pass_at_k(counts, 1, clusters) == average_at_k([[1], [1], [0], [0.25]], clusters)
