"""The values of a step's curves, computed by hand."""

import math

import pytest

from core.train.curves import SampleFacts, completion_curves, reward_curves


def fact(group: int, reward: float | None, *, tokens: int = 1, truncated: bool = False) -> SampleFacts:
    return SampleFacts(group, reward, {"math": reward}, tokens, truncated)


def test_reward_spread_is_the_mean_of_the_groups_own() -> None:
    values = reward_curves([fact(0, 1.0), fact(0, 0.0), fact(1, 1.0), fact(1, 1.0)])
    assert values["reward"] == 0.75
    assert values["reward_std"] == pytest.approx(math.sqrt(0.5) / 2, rel=1e-12)
    assert values["frac_reward_zero_std"] == 0.5
    assert values["reward/math"] == 0.75


def test_samples_without_a_verdict_are_left_out_and_counted() -> None:
    values = reward_curves([fact(0, 1.0), fact(0, None), fact(0, 0.0)])
    assert values["reward"] == 0.5
    assert values["rewards/invalid"] == 1.0
    assert values["frac_reward_zero_std"] == 0.0


def test_a_step_without_any_verdict_is_not_a_reward_of_zero() -> None:
    assert math.isnan(reward_curves([fact(0, None)])["reward"])


def test_truncation_is_a_share_of_all_completions() -> None:
    values = completion_curves([fact(0, 1.0, tokens=4, truncated=True), fact(0, 1.0, tokens=2)])
    assert values == {"completions/mean_length": 3.0, "completions/max_length": 4.0, "completions/clipped_ratio": 0.5}
