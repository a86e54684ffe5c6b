"""Chance: the figures that random walks are known to give, and walks through rounding and optimizers."""

import numpy as np
import pytest
import torch

from core.dynamics import nulls
from core.dynamics.regression import fit_lines

STEPS = [20 * k for k in range(14)]


def r2(walks_KN, steps):
    fits = fit_lines(walks_KN, steps)
    return fits.r2_N[fits.changed_N]


def walks(n=100_000, steps=STEPS):
    return nulls.plain_walks(steps, n, np.random.default_rng(0))


def test_a_walk_over_14_checkpoints_is_linear_for_a_quarter_of_its_weights():
    r2_N = r2(walks(), STEPS)
    assert r2_N.mean() == pytest.approx(0.44, abs=0.006)
    assert (r2_N > 0.7).mean() == pytest.approx(0.27, abs=0.006)


def test_keeping_those_that_moved_two_increments_lifts_it():
    moved = nulls.moved(walks(), STEPS)
    assert moved.shape[1] / 100_000 == pytest.approx(0.58, abs=0.01)
    r2_N = r2(moved, STEPS)
    assert r2_N.mean() == pytest.approx(0.61, abs=0.006)
    assert (r2_N > 0.7).mean() == pytest.approx(0.455, abs=0.008)


def test_under_momentum_noise_looks_linear_first_and_breaks_later():
    drive = nulls.Drive("sgd", 0.9, 0.0, (1.0,) * 400)
    steps = list(range(401))
    walks_KN = nulls.driven_walks(steps, drive, 3000, np.random.default_rng(0))
    assert np.median(r2(walks_KN[:11], steps[:11])) == pytest.approx(0.88, abs=0.02)
    assert np.median(r2(walks_KN, steps)) == pytest.approx(0.5, abs=0.03)


@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_a_driven_walk_is_what_torch_does_with_the_same_gradients(name):
    steps, rates = [0, 2, 4, 8], [1e-3 * (1 + update % 3) for update in range(16)]
    drive = nulls.Drive(name, 0.9, 0.99, tuple(rates), updates_per_step=2)
    found = nulls.driven_walks(steps, drive, 5, np.random.default_rng(3))
    rng = np.random.default_rng(3)
    weight = torch.zeros(5, dtype=torch.float64, requires_grad=True)
    optimizer = (
        torch.optim.AdamW([weight], betas=(0.9, 0.99), eps=0.0, weight_decay=0.0)
        if name == "adamw"
        else torch.optim.SGD([weight], lr=1.0, momentum=0.9)
    )
    for update in range(16):
        optimizer.param_groups[0]["lr"] = rates[update]
        weight.grad = torch.from_numpy(rng.standard_normal(5))
        optimizer.step()
        if (update + 1) % 2 == 0 and (update + 1) // 2 in steps:
            row = steps.index((update + 1) // 2)
            np.testing.assert_allclose(found[row], weight.detach().numpy(), rtol=1e-12)


def test_a_driven_walk_that_begins_late_starts_at_0():
    drive = nulls.Drive("adamw", 0.9, 0.999, (1.0,) * 40)
    walks_KN = nulls.driven_walks([10, 20, 30, 40], drive, 7, np.random.default_rng(0))
    assert not walks_KN[0].any()
    assert walks_KN[1:].all()


def test_too_few_rates_are_refused():
    with pytest.raises(ValueError, match="40 rates"):
        nulls.driven_walks([0, 40], nulls.Drive("sgd", 0.0, 0.0, (1.0,) * 39), 2, np.random.default_rng(0))


def test_uneven_steps_have_uneven_increments():
    walks_KN = walks(50_000, [0, 1, 101, 102])
    np.testing.assert_allclose(np.diff(walks_KN, axis=0).var(axis=1), [1, 100, 1], rtol=0.03)


def test_rounding_matches_the_share_of_increments_that_move_and_the_r2_of_rounded_walks():
    """Weights that walk in steps below a bfloat16 spacing: the null must look as their folders do."""
    rng = np.random.default_rng(5)
    initial_N = rng.standard_normal(40_000) * 0.02
    true_KN = nulls.plain_walks(STEPS, 40_000, rng) * 2e-6
    rounded = torch.from_numpy(initial_N + true_KN).to(torch.bfloat16).to(torch.float64).numpy()
    seen_KN = rounded - rounded[0]
    observed = fit_lines(seen_KN, STEPS)
    kept = observed.changed_N
    assert 0.05 < kept.mean() < 0.95
    rounding = nulls.Rounding("BF16", rounded[0][kept], nulls.moving_share(seen_KN))
    null_KN = nulls.view_of(walks(20_000), rounding, seed=1)(walks(20_000))
    assert nulls.moving_share(null_KN) == pytest.approx(rounding.moving, abs=0.01)
    expected, found = observed.r2_N[kept], r2(null_KN, STEPS)
    assert (found > 0.7).mean() == pytest.approx((expected > 0.7).mean(), abs=0.02)
    assert found.mean() == pytest.approx(expected.mean(), abs=0.02)
    plain = r2(walks(20_000), STEPS)
    assert abs((plain > 0.7).mean() - (expected > 0.7).mean()) > 0.05, "rounding would not matter here"


@pytest.mark.parametrize(("name", "dtype"), [("BF16", torch.bfloat16), ("F16", torch.float16)])
def test_rounding_is_that_of_torch(name, dtype):
    values = np.random.default_rng(0).standard_normal(2000) * np.exp2(np.arange(2000) % 12 - 6)
    expected = torch.from_numpy(values).to(torch.float32).to(dtype).to(torch.float64).numpy()
    np.testing.assert_array_equal(nulls._rounded(values, name), expected)


def test_a_walk_in_five_directions_may_give_almost_anything():
    band = nulls.chance_band(
        walks(5000), STEPS, directions=5.0, observed=0.6, threshold=0.7, view=lambda walks: walks, seed=0
    )
    assert band["low"] == pytest.approx(0.02, abs=0.02)
    assert band["high"] == pytest.approx(0.52, abs=0.04)
    assert band["p_value"] < 0.05


def test_a_walk_in_many_directions_gives_one_share():
    band = nulls.chance_band(
        walks(5000), STEPS, directions=float("inf"), observed=0.27, threshold=0.7, view=lambda walks: walks, seed=0
    )
    assert band["at_least"]
    assert 0.24 < band["low"] < 0.27 < band["high"] < 0.30


def test_the_band_of_200_directions_is_that_of_a_direct_simulation():
    band = nulls.chance_band(
        walks(20_000), STEPS, directions=200.0, observed=0.27, threshold=0.7, view=lambda walks: walks, seed=0
    )
    rng = np.random.default_rng(8)
    shares = [
        np.mean(r2(nulls.plain_walks(STEPS, 200, rng) @ rng.standard_normal((200, 1500)), STEPS) > 0.7)
        for _ in range(200)
    ]
    low, high = np.quantile(shares, [0.05, 0.95])
    assert band["high"] - band["low"] == pytest.approx(high - low, rel=0.25)
    assert (band["low"], band["high"]) == pytest.approx((low, high), abs=0.02)


def test_walks_are_the_same_every_time():
    drive = nulls.Drive("adamw", 0.9, 0.999, (1.0,) * 260)
    for name in ("plain", "driven"):
        np.testing.assert_array_equal(nulls.walks_of(name, STEPS, drive, 4), nulls.walks_of(name, STEPS, drive, 4))
    assert (nulls.walks_of("plain", STEPS, None, 4) != nulls.walks_of("plain", STEPS, None, 5)).any()
