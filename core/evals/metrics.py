"""Accuracies with their uncertainty: Wilson's interval, avg@k with clustered standard errors, unbiased pass@k.

Plain numbers in and out; it knows no items, engines or records.
"""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean


@dataclass(frozen=True)
class Interval:
    """A two-sided confidence interval."""

    low: float
    high: float


@dataclass(frozen=True)
class Mean:
    """A mean over items, its standard error over independent clusters (None for fewer than two) and their number."""

    mean: float
    standard_error: float | None
    clusters: int


def wilson(correct: int, total: int, confidence: float = 0.95) -> Interval:
    """Wilson's score interval for a proportion, without continuity correction (Wilson 1927; Newcombe 1998, method 3)."""
    if not 0 <= correct <= total or total < 1:
        raise ValueError(f"{correct} correct of {total}: need 0 <= correct <= total and total >= 1")
    z = z_value(confidence)
    share = correct / total
    centre = (share + z * z / (2 * total)) / (1 + z * z / total)
    half = z / (1 + z * z / total) * math.sqrt(share * (1 - share) / total + z * z / (4 * total * total))
    return Interval(0.0 if correct == 0 else centre - half, 1.0 if correct == total else centre + half)


def average_at_k(scores: Sequence[Sequence[float]], clusters: Sequence[Hashable] | None = None) -> Mean:
    """avg@k: mean over items of each item's mean over its samples; the standard error is over items, never samples.

    ``scores[i]`` are the samples of item i (their number may differ). ``clusters`` names what items share, such as a
    source text; items of one cluster are not independent, so deviations are summed within clusters first (the usual
    sandwich estimate with the factor C/(C-1)). Without clusters this is sd(item means) / sqrt(n).
    """
    if not scores or any(not samples for samples in scores):
        raise ValueError("every item needs at least one sample")
    if clusters is not None and len(clusters) != len(scores):
        raise ValueError(f"{len(clusters)} cluster names for {len(scores)} items")
    means = [fmean(samples) for samples in scores]
    centre = fmean(means)
    sums: dict[Hashable, float] = {}
    for name, mean in zip(range(len(means)) if clusters is None else clusters, means, strict=True):
        sums[name] = sums.get(name, 0.0) + (mean - centre)
    count = len(sums)
    if count < 2:
        return Mean(centre, None, count)
    variance = count / (count - 1) * math.fsum(one * one for one in sums.values()) / len(means) ** 2
    return Mean(centre, math.sqrt(variance), count)


def mean_interval(mean: Mean, confidence: float = 0.95) -> Interval | None:
    """Student's interval of a mean of shares over its clusters (C - 1 degrees of freedom), within [0, 1].

    Where all clusters agree the estimated error is 0, which says nothing of other clusters: then Wilson's interval with the
    clusters as trials. None for fewer than two clusters.
    """
    if mean.standard_error is None:
        return None
    if mean.standard_error == 0:
        return _all_alike(mean, confidence)
    half = t_value(confidence, mean.clusters - 1) * mean.standard_error
    return Interval(max(0.0, mean.mean - half), min(1.0, mean.mean + half))


def _all_alike(mean: Mean, confidence: float) -> Interval:
    """Wilson's interval for the nearest count of clusters, widened to hold the mean itself."""
    found = wilson(min(mean.clusters, max(0, round(mean.mean * mean.clusters))), mean.clusters, confidence)
    return Interval(min(found.low, mean.mean), max(found.high, mean.mean))


def t_value(confidence: float, freedom: int) -> float:
    """Quantile of Student's t of a two-sided interval."""
    from scipy.special import stdtrit  # imported here: scipy takes longer to load than all else in this package

    if not 0 < confidence < 1 or freedom < 1:
        raise ValueError(f"confidence is {confidence} with {freedom} degrees of freedom; need 0 to 1, and at least 1")
    return float(stdtrit(freedom, (1 + confidence) / 2))


def pass_at_k(n: int, correct: int, k: int) -> float:
    """Chance that k of the n samples, drawn without replacement, hold a correct one: 1 - C(n-c, k) / C(n, k).

    Unbiased for the chance that k fresh samples do (Chen et al. 2021, equation 1); 1 when fewer than k are wrong.
    """
    if not 0 <= correct <= n or not 1 <= k <= n:
        raise ValueError(f"n = {n}, correct = {correct}, k = {k}: need 0 <= correct <= n and 1 <= k <= n")
    if n - correct < k:
        return 1.0
    return 1.0 - math.comb(n - correct, k) / math.comb(n, k)


def mean_pass_at_k(counts: Sequence[tuple[int, int]], k: int, clusters: Sequence[Hashable] | None = None) -> Mean:
    """pass@k over items given as (samples, correct), with the standard error over items or their clusters."""
    return average_at_k([[pass_at_k(n, correct, k)] for n, correct in counts], clusters)


def z_value(confidence: float) -> float:
    """Standard normal quantile of a two-sided interval."""
    if not 0 < confidence < 1:
        raise ValueError(f"confidence is {confidence}; it must lie between 0 and 1")
    return NormalDist().inv_cdf((1 + confidence) / 2)
