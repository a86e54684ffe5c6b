"""Statistics of the run as a whole, against plain computations on the weights themselves."""

from itertools import pairwise, product

import numpy as np
import pytest

from core.dynamics import gram
from core.dynamics.regression import fit_lines

STEPS = (0, 10, 25, 40, 60, 100)


def path_of(path_KN, steps=STEPS):
    return gram.PathGram(tuple(steps), path_KN @ path_KN.T)


def noise(n, seed=0, directions=None, steps=STEPS):
    rng = np.random.default_rng(seed)
    gaps = np.sqrt(np.diff(steps))[:, None]
    increments = rng.standard_normal((len(steps) - 1, directions or n)) * gaps
    if directions:
        increments = increments @ rng.standard_normal((directions, n))
    return np.concatenate([np.zeros((1, n)), increments.cumsum(axis=0)])


def test_increments_have_their_inner_products():
    path_KN = noise(40)
    increments = np.diff(path_KN, axis=0)
    np.testing.assert_allclose(path_of(path_KN).increments, increments @ increments.T, rtol=1e-9, atol=1e-9)


def test_effective_rank_of_orthogonal_and_of_parallel_increments():
    assert gram.effective_rank(np.eye(7)) == pytest.approx(7)
    assert gram.effective_rank(np.outer([1, 2, 3], [1, 2, 3])) == pytest.approx(1)
    assert gram.effective_rank(np.zeros((3, 3))) is None


@pytest.mark.parametrize("directions", [3, 5, 20])
def test_the_number_of_directions_is_found_with_and_without_drift(directions):
    steps = tuple(20 * k for k in range(14))
    drift = np.outer(steps, np.random.default_rng(9).standard_normal(3000)) * 5
    plain = [gram.independent_directions(path_of(noise(3000, seed, directions, steps), steps)) for seed in range(15)]
    drifting = [
        gram.independent_directions(path_of(noise(3000, seed, directions, steps) + drift, steps)) for seed in range(15)
    ]
    assert np.median(plain) == pytest.approx(directions, rel=0.2)
    np.testing.assert_allclose(drifting, plain, rtol=1e-6)


def test_no_scatter_has_no_directions_and_no_t():
    path = gram.PathGram((0, 1, 2, 3), np.zeros((4, 4)))
    assert gram.independent_directions(path) is None
    assert gram.drift_t(path) is None
    assert gram.lag_one(path)["value"] is None


def test_path_r2_is_the_variance_weighted_mean_of_the_weights():
    path_KN = noise(60)
    r2_N, variance_N = fit_lines(path_KN, STEPS).r2_N, path_KN.var(axis=0)
    assert gram.path_r2(path_of(path_KN))[0] == pytest.approx(np.average(r2_N, weights=variance_N), rel=1e-9)


def test_sign_flips_are_those_of_the_increments():
    path_KN = noise(30)
    increments = np.diff(path_KN, axis=0)
    expected = []
    for signs in product([1, -1], repeat=5):
        flipped = np.concatenate([np.zeros((1, 30)), (np.array(signs)[:, None] * increments).cumsum(axis=0)])
        expected.append(np.average(fit_lines(flipped, STEPS).r2_N, weights=flipped.var(axis=0)))
    found = gram.sign_flip(path_of(path_KN), seed=0)
    assert found["exact"]
    assert found["path_r2"] == pytest.approx(expected[0], rel=1e-9)
    assert found["flipped"]["median"] == pytest.approx(np.median(expected), rel=1e-9)
    assert found["p_value"] == np.mean(np.array(expected) >= expected[0] * (1 - 1e-12))


def test_sign_flip_finds_drift_and_keeps_its_level_on_noise():
    drift = noise(50) + np.outer(STEPS, np.ones(50))
    found = gram.sign_flip(path_of(drift), seed=0)
    assert found["p_value"] == 1 / 16
    assert "momentum" in found["caveat"]
    far = tuple(10 * step for step in STEPS)
    assert gram.sign_flip(path_of(noise(50, steps=far), far), seed=0)["caveat"] is None
    values = [gram.sign_flip(path_of(noise(5, seed)), seed=0)["p_value"] for seed in range(300)]
    assert np.mean(np.array(values) <= 1 / 8) == pytest.approx(1 / 8, abs=0.06)


def test_many_increments_are_flipped_at_random_reproducibly():
    steps = tuple(range(30))
    path = path_of(noise(20, steps=steps), steps)
    found = gram.sign_flip(path, seed=3)
    assert not found["exact"]
    assert found == gram.sign_flip(path, seed=3)


def test_lag_one_is_taken_over_increments_of_50_steps_where_there_are_enough():
    steps = tuple(range(0, 500, 10))
    path_KN = noise(400, steps=steps)
    found = gram.lag_one(path_of(path_KN, steps))
    assert found["span"] == 50
    assert found["value"] == pytest.approx(0, abs=0.1)
    rows = list(range(0, 50, 5))
    increments = np.diff(path_KN[rows], axis=0)
    cosines = [a @ b / np.linalg.norm(a) / np.linalg.norm(b) for a, b in pairwise(increments)]
    assert found["value"] == pytest.approx(np.mean(cosines), rel=1e-9)
    short = gram.lag_one(path_of(noise(40)))
    assert (short["span"], short["pairs"]) == (10, 4)


def test_the_pooled_t_is_1_for_a_walk_and_large_for_a_drift():
    assert gram.drift_t(path_of(noise(5000))) == pytest.approx(1, abs=0.05)
    drifting = noise(5000) + np.outer(STEPS, np.ones(5000))
    # Net drift^2 per time is 100 + 1 against a scatter of 1.
    assert gram.drift_t(path_of(drifting)) == pytest.approx(np.sqrt(101), rel=0.05)
