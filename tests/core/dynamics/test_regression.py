"""R2 and t per weight, against scipy and by hand; the histogram against exact order statistics."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from core.dynamics.regression import BINS, R2Histogram, fit_lines, fit_paths

STEPS = np.array([0, 10, 25, 40, 60, 100])


def paths(n, seed=0, offset=0.0):
    values = np.random.default_rng(seed).standard_normal((len(STEPS), n)).cumsum(axis=0) + offset
    return values - values[0]


def test_r2_is_the_squared_correlation():
    path_KN = paths(50)
    fits = fit_lines(path_KN, STEPS)
    for at in range(50):
        assert fits.r2_N[at] == pytest.approx(stats.pearsonr(STEPS, path_KN[:, at]).statistic ** 2, rel=1e-10)


@pytest.mark.parametrize("scale", [1.0, 1e-6, 1e-25, 1e25])
@pytest.mark.parametrize("points", [4, 14, 64])
def test_float32_paths_give_the_float64_numbers(points, scale):
    steps = np.cumsum(np.random.default_rng(1).integers(1, 30, size=points))
    path_KN = (np.random.default_rng(2).standard_normal((points, 4000)).cumsum(axis=0) * scale).astype(np.float32)
    path_KN[:, :50] = path_KN[0, :50]  # constant ones
    path_KN[1:, 50:90] = (
        3 * scale + path_KN[0, 50:90]
    )  # a jump at once, then nothing: the worst case for sums of squares
    path_JN = path_KN[1:] - path_KN[0]
    exact, found = fit_paths(path_JN.astype(np.float64), steps), fit_paths(path_JN, steps)
    np.testing.assert_array_equal(found.changed_N, exact.changed_N)
    np.testing.assert_allclose(found.r2_N, exact.r2_N, rtol=0, atol=2e-6)
    assert found.drifting(2.2) == pytest.approx(exact.drifting(2.2), abs=1)


def test_a_change_of_sign_of_zero_is_no_change():
    assert not fit_paths(np.full((3, 1), -0.0, dtype=np.float32), [0, 1, 2, 3]).changed_N[0]


def test_r2_by_hand():
    # y = 0, 1, 0, 1 over t = 0..3: covariance sum 1, variance sums 5 and 1, so R2 = 1 / 5.
    assert fit_lines(np.array([[0.0], [1], [0], [1]]), [0, 1, 2, 3]).r2_N[0] == pytest.approx(0.2, rel=1e-14)


def test_a_tiny_change_of_a_large_weight_keeps_its_r2():
    """Centred on the first checkpoint, a change of one part in 10^12 is as exact as any other."""
    path_KN = paths(20)
    small = fit_lines(path_KN * 1e-150, STEPS)
    np.testing.assert_allclose(small.r2_N, fit_lines(path_KN, STEPS).r2_N, rtol=1e-12)


def test_constant_weights_are_excluded_not_called_linear():
    fits = fit_lines(np.array([[0.0, 0.0], [0, 1], [0, 2], [0, 3]]), [0, 1, 2, 3])
    assert fits.changed_N.tolist() == [False, True]
    assert fits.r2_N == pytest.approx([0, 1])


def test_a_weight_that_returned_has_changed_and_does_not_drift():
    fits = fit_lines(np.array([[0.0], [1], [1], [0]]), [0, 1, 2, 3])
    assert fits.changed_N[0]
    assert fits.r2_N[0] == pytest.approx(0, abs=1e-15)
    assert fits.t_N[0] == 0


def test_t_is_students_t_of_equal_increments():
    path_KN = paths(30)
    steps = np.arange(len(STEPS)) * 7
    expected = stats.ttest_1samp(np.diff(path_KN, axis=0), 0.0, axis=0).statistic
    np.testing.assert_allclose(fit_lines(path_KN, steps).t_N, expected, rtol=1e-9)


@settings(max_examples=40, deadline=None)
@given(scale=st.floats(1e-12, 1e12), slope=st.floats(-5, 5), seed=st.integers(0, 99))
def test_r2_does_not_depend_on_scale_and_lies_between_0_and_1(scale, slope, seed):
    path_KN = paths(8, seed) + slope * STEPS[:, None]
    r2_N = fit_lines(path_KN, STEPS).r2_N
    assert ((r2_N >= 0) & (r2_N <= 1)).all()
    np.testing.assert_allclose(fit_lines(scale * path_KN, STEPS).r2_N, r2_N, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(fit_lines(path_KN, STEPS * 3.0 + 50).r2_N, r2_N, rtol=1e-9, atol=1e-12)


def test_the_histogram_agrees_with_numpy():
    r2_N = np.random.default_rng(0).beta(2, 1, size=5000)
    changed_N = np.random.default_rng(1).random(5000) < 0.9
    histogram, half = R2Histogram(0.7), R2Histogram(0.7)
    r2_N[~changed_N] = 0
    histogram.add(r2_N[:2000], changed_N[:2000])
    half.add(r2_N[2000:], changed_N[2000:])
    histogram.merge(half)
    kept = r2_N[changed_N]
    assert histogram.constant == int((~changed_N).sum())
    assert histogram.share_above == (kept > 0.7).mean()
    assert histogram.mean == pytest.approx(kept.mean(), rel=1e-12)
    for q in (0.25, 0.5, 0.75, 0.99):
        assert histogram.quantile(q) == pytest.approx(np.quantile(kept, q), abs=1.5 / BINS)
    assert sum(histogram.coarse(50)) == len(kept)
    assert histogram.coarse(50) == np.histogram(kept, bins=50, range=(0, 1))[0].tolist()


def test_a_histogram_of_constants_has_no_share():
    histogram = R2Histogram(0.7)
    histogram.add(np.zeros(3), np.zeros(3, dtype=bool))
    assert (histogram.constant, histogram.share_above, histogram.quantile(0.5), histogram.mean) == (3, None, None, None)
