"""Advantages against published numbers, and the rules on rounding, missing rewards and small groups."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from core.rl.advantages import centered, grpo, reinforce_plus_plus, rloo, whitened_returns

ONE_HIT = torch.tensor([1.0, 0.0, 0.0, 0.0])
ONE_GROUP = torch.zeros(4, dtype=torch.int64)
RPP = torch.tensor([1.0, 0.0, 1.0, 1.0]), torch.tensor([2, 4, 6, 4]), torch.tensor([0, 0, 1, 1])


def exactly(values: torch.Tensor, expected: list[float], tolerance: float = 6e-7) -> None:
    assert values.dtype == torch.float64
    torch.testing.assert_close(values, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=tolerance)


@pytest.mark.parametrize(
    ("std", "eps", "expected", "tolerance"),
    [
        ("sample", 1e-4, [1.4997, -0.4999, -0.4999, -0.4999], 5e-5),
        ("population", 1e-4, [1.731651, -0.577217, -0.577217, -0.577217], 6e-7),
        ("sample", 1e-6, [1.499997, -0.499999, -0.499999, -0.499999], 6e-7),
        ("none", 1e-6, [0.75, -0.25, -0.25, -0.25], 0.0),
    ],
)
def test_grpo_gives_the_published_numbers_for_one_hit_in_four(std, eps, expected, tolerance):
    exactly(grpo(ONE_HIT, ONE_GROUP, std=std, eps=eps).advantages_B, expected, tolerance)


def test_rloo_and_centred_give_the_published_numbers_for_one_hit_in_four():
    exactly(rloo(ONE_HIT, ONE_GROUP).advantages_B, [1.0, -1 / 3, -1 / 3, -1 / 3], 1e-15)
    exactly(centered(ONE_HIT, ONE_GROUP).advantages_B, [0.75, -0.25, -0.25, -0.25], 0.0)


@pytest.mark.parametrize(
    ("variance", "baseline", "expected"),
    [
        ("population", False, [0.57735, -1.732051, 0.57735, 0.57735]),
        ("unbiased", False, [0.559017, -1.677051, 0.559017, 0.559017]),
        ("population", True, [1.87663, -1.459601, 0.208514, 0.208514]),
    ],
)
def test_reinforce_plus_plus_gives_the_published_numbers_over_sixteen_tokens(variance, baseline, expected):
    result = reinforce_plus_plus(*RPP, variance=variance, baseline=baseline)
    exactly(result.advantages_B, expected)
    assert (result.zero_variance_groups, result.groups) == (1, 2)


def test_whitened_returns_equal_reinforce_plus_plus_when_returns_are_constant_in_a_sample():
    rewards, lengths, groups = RPP
    mask = torch.arange(6)[None, :] < lengths[:, None]
    returns = torch.where(mask, rewards[:, None].expand(4, 6), float("nan"))
    whitened = whitened_returns(returns, mask, variance="population")
    expected = reinforce_plus_plus(rewards, lengths, groups, variance="population").advantages_B
    torch.testing.assert_close(whitened, expected[:, None] * mask, rtol=1e-14, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("std", ["sample", "population"])
def test_seven_equal_rewards_of_a_tenth_give_exactly_zero_and_are_counted(dtype, std):
    # The scenario is real: in float32 numpy's deviation of these is not 0, and a small eps blows it up.
    rewards32 = np.full(7, 0.1, dtype=np.float32)
    assert rewards32.std() > 0
    result = grpo(torch.full((7,), 0.1, dtype=dtype), torch.zeros(7, dtype=torch.int64), std=std, eps=1e-9)
    assert (result.advantages_B == 0).all()
    assert (result.zero_variance_groups, result.groups) == (1, 1)
    assert result.zero_variance_B.all()


def test_rewards_that_differ_by_the_last_bit_count_as_equal():
    rewards = torch.tensor([0.1 + 0.2, 0.3, 0.3, 0.3], dtype=torch.float64)
    assert rewards[0] != rewards[1]
    assert (grpo(rewards, ONE_GROUP, eps=0.0).advantages_B == 0).all()


def test_a_small_real_difference_is_not_rounding():
    rewards = torch.tensor([1.0, 1.0, 1.0, 1.0001])
    result = grpo(rewards, ONE_GROUP)
    assert result.zero_variance_groups == 0
    assert result.advantages_B[3] > 1.0


@pytest.mark.parametrize("missing", [float("nan"), float("inf"), 7.0])
def test_a_sample_without_a_reward_leaves_the_statistics_and_gets_zero(missing):
    rewards = torch.tensor([1.0, missing, 0.0, 1.0])
    valid = torch.tensor([True, False, True, True]) if math.isfinite(missing) else None
    result = grpo(rewards, ONE_GROUP, valid, eps=0.0)
    deviation = math.sqrt((2 * (1 / 3) ** 2 + (2 / 3) ** 2) / 2)
    exactly(result.advantages_B, [1 / 3 / deviation, 0.0, -2 / 3 / deviation, 1 / 3 / deviation], 1e-14)
    assert result.valid_B.tolist() == [True, False, True, True]
    exactly(rloo(rewards, ONE_GROUP, valid).advantages_B, [0.5, 0.0, -1.0, 0.5], 1e-14)


def test_a_missing_reward_takes_its_tokens_out_of_the_whitening():
    rewards, lengths = torch.tensor([1.0, float("nan"), 0.0]), torch.tensor([2, 50, 2])
    result = reinforce_plus_plus(rewards, lengths, torch.tensor([0, 0, 1]), variance="population")
    exactly(result.advantages_B, [1.0, 0.0, -1.0], 1e-7)


@pytest.mark.parametrize("function", [grpo, rloo, centered])
def test_a_group_of_one_gets_zero_and_never_the_raw_reward(function):
    result = function(torch.tensor([3.0, 1.0, 0.0]), torch.tensor([5, 6, 6]))
    assert result.advantages_B[0] == 0
    assert result.zero_variance_B.tolist() == [True, False, False]


@pytest.mark.parametrize("function", [grpo, rloo, centered])
def test_a_batch_without_any_reward_gives_zeros(function):
    result = function(torch.full((4,), float("nan")), torch.tensor([0, 0, 1, 1]))
    assert (result.advantages_B == 0).all()
    assert (result.zero_variance_groups, result.groups) == (2, 2)


def test_unknown_settings_and_wrong_shapes_are_refused_by_name():
    with pytest.raises(ValueError, match="std must be 'sample', 'population' or 'none'"):
        grpo(ONE_HIT, ONE_GROUP, std="biased")
    with pytest.raises(ValueError, match="group_ids_B"):
        grpo(ONE_HIT, ONE_GROUP[:3])
    with pytest.raises(ValueError, match="variance must be"):
        reinforce_plus_plus(*RPP, variance="sample")
    with pytest.raises(ValueError, match="lengths_B must have the shape"):
        reinforce_plus_plus(RPP[0], RPP[1][:2], RPP[2])


batches = st.lists(
    st.tuples(st.integers(0, 3), st.one_of(st.none(), st.integers(-4, 4).map(lambda x: x / 4))), min_size=1, max_size=16
)


@given(batches, st.sampled_from(["sample", "population", "none"]))
def test_grpo_equals_numpy_group_by_group(batch, std):
    ids = torch.tensor([g for g, _ in batch])
    rewards = torch.tensor([math.nan if r is None else r for _, r in batch], dtype=torch.float64)
    result = grpo(rewards, ids, std=std, eps=1e-6)
    for group in {g for g, _ in batch}:
        values = np.array([r for g, r in batch if g == group and r is not None])
        got = result.advantages_B[(ids == group) & torch.isfinite(rewards)].numpy()
        if len(values) < 2 or values.min() == values.max():
            assert (got == 0).all()
            continue
        scale = {"sample": values.std(ddof=1) + 1e-6, "population": values.std() + 1e-6, "none": 1.0}
        np.testing.assert_allclose(got, (values - values.mean()) / scale[std], rtol=1e-12, atol=1e-12)
        assert abs(got.sum()) < 1e-9


@given(batches, st.randoms())
def test_the_order_of_the_samples_does_not_matter(batch, random):
    order = list(range(len(batch)))
    random.shuffle(order)
    ids = torch.tensor([g for g, _ in batch])
    rewards = torch.tensor([math.nan if r is None else r for _, r in batch])
    lengths = torch.arange(1, len(batch) + 1)
    for function in (grpo, rloo, centered):
        whole = function(rewards, ids).advantages_B[order]
        torch.testing.assert_close(function(rewards[order], ids[order]).advantages_B, whole, rtol=1e-12, atol=1e-13)
    whole = reinforce_plus_plus(rewards, lengths, ids, baseline=True).advantages_B[order]
    mixed = reinforce_plus_plus(rewards[order], lengths[order], ids[order], baseline=True).advantages_B
    torch.testing.assert_close(mixed, whole, rtol=1e-10, atol=1e-10)


@given(batches, st.booleans(), st.sampled_from(["unbiased", "population"]))
def test_reinforce_plus_plus_has_mean_zero_and_unit_variance_over_tokens(batch, baseline, variance):
    ids = torch.tensor([g for g, _ in batch])
    rewards = torch.tensor([math.nan if r is None else r for _, r in batch], dtype=torch.float64)
    lengths = torch.arange(1, len(batch) + 1)
    result = reinforce_plus_plus(rewards, lengths, ids, variance=variance, baseline=baseline)
    tokens = result.advantages_B[result.valid_B].repeat_interleave(lengths[result.valid_B])
    if not len(tokens) or (tokens == 0).all():
        return
    assert abs(float(tokens.mean())) < 1e-9
    assert float(tokens.var(correction=1 if variance == "unbiased" else 0)) == pytest.approx(1.0, abs=1e-5)
