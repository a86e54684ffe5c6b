"""From one step's samples and updates to the values of its curves. Pure arithmetic on numbers.

Names are TRL's where TRL has one. Storing them is the caller's work, explaining them the api's.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev

from core.recipes.rewards import FILE


@dataclass(frozen=True)
class SampleFacts:
    """What the curves need to know of one sampled completion. ``reward`` is None where no verdict could be had.

    ``weighted`` is what each term added to the reward, ``failed`` the terms whose own function gave no number.
    """

    group: int
    reward: float | None
    terms: Mapping[str, float | None]
    tokens: int
    truncated: bool
    weighted: Mapping[str, float] = field(default_factory=dict)
    failed: tuple[str, ...] = ()
    verdict: str = ""
    extracted: str | None = None


def reward_curves(samples: Sequence[SampleFacts]) -> dict[str, float]:
    """Reward, its spread within groups and its terms.

    ``reward_std`` is the mean over groups of the sample standard deviation (ddof 1), as in TRL;
    ``frac_reward_zero_std`` the share of groups whose valid rewards are all equal. Samples without a reward are left out.
    """
    rewards = [sample.reward for sample in samples if sample.reward is not None]
    values = {"reward": _mean(rewards)}
    groups = _by_group(samples)
    spreads = [stdev(group) if len(group) > 1 else 0.0 for group in groups if group]
    values["reward_std"] = _mean(spreads)
    values["frac_reward_zero_std"] = _mean([float(len(set(group)) <= 1) for group in groups])
    values["rewards/invalid"] = float(sum(sample.reward is None for sample in samples))
    for term in sorted({name for sample in samples for name in sample.terms}):
        raw = [value for sample in samples if (value := sample.terms.get(term)) is not None]
        values[f"reward/{term}"] = _mean(raw)
        added = [value for sample in samples if (value := sample.weighted.get(term)) is not None]
        values[f"reward_weighted/{term}"] = _mean(added)
        if term.startswith(FILE):
            values[f"reward_failed/{term}"] = float(sum(term in sample.failed for sample in samples))
    return values


def completion_curves(samples: Sequence[SampleFacts]) -> dict[str, float]:
    """Length in tokens and the share that ended by the length limit (``clipped_ratio`` is TRL's word for truncation)."""
    return {
        "completions/mean_length": _mean([float(sample.tokens) for sample in samples]),
        "completions/max_length": float(max((sample.tokens for sample in samples), default=0)),
        "completions/clipped_ratio": _mean([float(sample.truncated) for sample in samples]),
    }


def _by_group(samples: Sequence[SampleFacts]) -> list[list[float]]:
    groups: dict[int, list[float]] = {}
    for sample in samples:
        group = groups.setdefault(sample.group, [])
        if sample.reward is not None:
            group.append(sample.reward)
    return list(groups.values())


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if values else math.nan
