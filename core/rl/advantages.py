"""Advantages: how much better each sample was than what it is compared with. All arithmetic is in float64.

Groups are given by ids, one per sample, never by the text of a prompt, so one prompt drawn twice makes two groups. A
sample without a valid reward (not valid, or not a finite number) is left out of every mean and deviation, gets advantage 0
and is flagged in the result. A group whose rewards are equal up to rounding gets exactly 0 and is counted: dividing
rounding noise by its own deviation would otherwise produce advantages of order one.

Deliberately absent: reward shaping, penalties for length, and everything per token apart from the whitened return.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

GroupStd = Literal["sample", "population", "none"]
Variance = Literal["unbiased", "population"]

# Rewards are sums of a few weighted terms, each rounded once; eight units in the last place cover that noise.
_ROUNDING_UNITS = 8.0
# verl's masked_whiten adds this to the variance under the root.
_WHITEN_EPS = 1e-8


@dataclass(frozen=True, slots=True)
class AdvantageResult:
    """Advantages of one batch.

    Attributes:
        advantages_B: float64; 0 where the sample is not valid.
        valid_B: bool; the samples that entered the statistics.
        zero_variance_B: bool; the samples whose group has no spread among its valid rewards.
        zero_variance_groups: number of such groups, groups with fewer than two valid rewards included.
        groups: number of groups.
    """

    advantages_B: Tensor
    valid_B: Tensor
    zero_variance_B: Tensor
    zero_variance_groups: int
    groups: int


@dataclass(frozen=True, slots=True)
class _Groups:
    """Rewards with their group statistics, each per group (suffix P) and indexed by ``index_B``."""

    rewards_B: Tensor
    valid_B: Tensor
    index_B: Tensor
    count_P: Tensor
    centred_B: Tensor
    flat_P: Tensor


def _group(rewards_B: Tensor, group_ids_B: Tensor, valid_B: Tensor | None) -> _Groups:
    if rewards_B.ndim != 1 or group_ids_B.shape != rewards_B.shape:
        msg = f"rewards_B and group_ids_B must be two vectors of one length, got {rewards_B.shape} and {group_ids_B.shape}"
        raise ValueError(msg)
    if valid_B is not None and valid_B.shape != rewards_B.shape:
        raise ValueError(
            f"valid_B must have the shape of rewards_B, {tuple(rewards_B.shape)}, got {tuple(valid_B.shape)}"
        )
    valid = torch.isfinite(rewards_B)
    if valid_B is not None:
        valid = valid & valid_B.bool()
    rewards = torch.where(valid, rewards_B.double(), 0.0)
    ids_P, index = torch.unique(group_ids_B, return_inverse=True)
    groups = ids_P.numel()
    count = rewards.new_zeros(groups).index_add_(0, index, valid.double())
    mean = rewards.new_zeros(groups).index_add_(0, index, rewards) / count.clamp(min=1.0)
    spread = _extreme(rewards, valid, index, groups, "amax") - _extreme(rewards, valid, index, groups, "amin")
    size = _extreme(rewards.abs(), valid, index, groups, "amax")
    flat = (count < 2) | (spread <= _rounding(rewards_B.dtype) * size)
    centred = torch.where(valid & ~flat[index], rewards - mean[index], 0.0)
    return _Groups(rewards, valid, index, count, centred, flat)


def _extreme(values_B: Tensor, valid_B: Tensor, index_B: Tensor, groups: int, which: Literal["amax", "amin"]) -> Tensor:
    """Largest or smallest valid value of each group; 0 for a group without any."""
    worst = float("-inf") if which == "amax" else float("inf")
    start = values_B.new_full((groups,), worst)
    found = start.scatter_reduce(0, index_B, torch.where(valid_B, values_B, worst), which)
    return torch.where(torch.isfinite(found), found, 0.0)


def _rounding(dtype: torch.dtype) -> float:
    """Relative spread below which rewards stored in ``dtype`` count as equal."""
    eps = torch.finfo(dtype).eps if dtype.is_floating_point else torch.finfo(torch.float64).eps
    return _ROUNDING_UNITS * eps


def _result(groups: _Groups, advantages_B: Tensor) -> AdvantageResult:
    return AdvantageResult(
        advantages_B=torch.where(groups.valid_B, advantages_B, 0.0),
        valid_B=groups.valid_B,
        zero_variance_B=groups.flat_P[groups.index_B],
        zero_variance_groups=int(groups.flat_P.sum()),
        groups=groups.flat_P.numel(),
    )


def grpo(
    rewards_B: Tensor,
    group_ids_B: Tensor,
    valid_B: Tensor | None = None,
    *,
    std: GroupStd = "sample",
    eps: float = 1e-6,
) -> AdvantageResult:
    """Group-relative advantages ``(r - mean) / (std + eps)`` (DeepSeekMath, section 4.1.2).

    Args:
        rewards_B: rewards; NaN or infinity means "no reward".
        group_ids_B: integer id of each sample's group.
        valid_B: False leaves a sample out; None takes every finite reward.
        std: ``sample`` divides by n - 1, ``population`` by n, ``none`` does not scale at all (Dr. GRPO).
        eps: added to the deviation; not used with ``none``.

    Raises:
        ValueError: for shapes that disagree or an unknown ``std``.
    """
    groups = _group(rewards_B, group_ids_B, valid_B)
    if std == "none":
        return _result(groups, groups.centred_B)
    if std not in ("sample", "population"):
        raise ValueError(f"std must be 'sample', 'population' or 'none', got {std!r}")
    freedom_P = groups.count_P - 1 if std == "sample" else groups.count_P
    squares_P = torch.zeros_like(groups.count_P).index_add_(0, groups.index_B, groups.centred_B**2)
    deviation_P = (squares_P / freedom_P.clamp(min=1.0)).sqrt() + eps
    # A flat group has centred rewards of exactly 0, and 0 / 0 must stay 0 when eps is 0.
    scale_P = torch.where(groups.flat_P, 1.0, deviation_P)
    return _result(groups, groups.centred_B / scale_P[groups.index_B])


def rloo(rewards_B: Tensor, group_ids_B: Tensor, valid_B: Tensor | None = None) -> AdvantageResult:
    """Reward minus the mean of the other valid samples of the group (Ahmadian et al. 2024, equation 6)."""
    groups = _group(rewards_B, group_ids_B, valid_B)
    # r_i - mean of the others = n / (n - 1) (r_i - mean); a group of one is flat and already 0.
    factor_P = groups.count_P / (groups.count_P - 1).clamp(min=1.0)
    return _result(groups, groups.centred_B * factor_P[groups.index_B])


def centered(rewards_B: Tensor, group_ids_B: Tensor, valid_B: Tensor | None = None) -> AdvantageResult:
    """Reward minus the mean of the group."""
    groups = _group(rewards_B, group_ids_B, valid_B)
    return _result(groups, groups.centred_B)


def reinforce_plus_plus(
    rewards_B: Tensor,
    lengths_B: Tensor,
    group_ids_B: Tensor,
    valid_B: Tensor | None = None,
    *,
    variance: Variance = "unbiased",
    baseline: bool = False,
) -> AdvantageResult:
    """REINFORCE++: the return, whitened over all valid tokens of the batch (Hu 2025, section 3; discount 1).

    Every token of a sample carries the sample's return, so a sample counts in the statistics as often as it has tokens.
    With ``baseline`` the group's mean is subtracted first and nothing is divided by the group's deviation. The batch mean
    of what is left is in general not 0, because lengths differ, so a group without spread then gets an advantage that is
    not 0. The formula intends that; ``zero_variance_groups`` still counts the group.

    Args:
        rewards_B: rewards; NaN or infinity means "no reward".
        lengths_B: number of valid tokens of each sample.
        group_ids_B: integer id of each sample's group (counted always, subtracted with ``baseline``).
        valid_B: False leaves a sample out.
        variance: ``unbiased`` divides by the number of tokens minus one, ``population`` by the number of tokens.
        baseline: subtract the group's mean first.
    """
    groups = _group(rewards_B, group_ids_B, valid_B)
    if lengths_B.shape != rewards_B.shape:
        raise ValueError(
            f"lengths_B must have the shape of rewards_B, {tuple(rewards_B.shape)}, got {tuple(lengths_B.shape)}"
        )
    returns = groups.centred_B if baseline else groups.rewards_B
    tokens = torch.where(groups.valid_B, lengths_B.double(), 0.0)
    return _result(groups, _whiten(returns, tokens, variance, _rounding(rewards_B.dtype)))


def whitened_returns(returns_BT: Tensor, mask_BT: Tensor, *, variance: Variance = "unbiased") -> Tensor:
    """Whiten per-token returns over the tokens in ``mask_BT``; float64 [B, T], 0 outside the mask.

    For returns that differ within a sample, such as REINFORCE++ with a KL penalty per token in the reward.
    """
    mask = mask_BT.bool()
    returns = torch.where(mask, returns_BT.double(), 0.0)
    return torch.where(mask, _whiten(returns, mask.double(), variance, _rounding(returns_BT.dtype)), 0.0)


def _whiten(values: Tensor, counts: Tensor, variance: Variance, rounding: float) -> Tensor:
    """``(x - mean) / sqrt(var + 1e-8)`` where each value counts ``counts`` times; exactly 0 without spread."""
    if variance not in ("unbiased", "population"):
        raise ValueError(f"variance must be 'unbiased' or 'population', got {variance!r}")
    used = counts > 0
    total = counts.sum()
    if not bool(used.any()) or bool(values[used].max() - values[used].min() <= rounding * values[used].abs().max()):
        return torch.zeros_like(values)
    mean = (values * counts).sum() / total
    squares = ((values - mean) ** 2 * counts).sum()
    freedom = total - 1 if variance == "unbiased" else total
    return (values - mean) * torch.rsqrt(squares / freedom + _WHITEN_EPS)
