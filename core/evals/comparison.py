"""Paired comparison of two evaluations of the same items: lost and gained, an exact test, an interval.

Looks and stop rules have their own statistics (:mod:`core.damage`); this is for reading two finished evaluations.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from core.evals.metrics import Mean, average_at_k, t_value, wilson, z_value


class ItemsDifferError(ValueError):
    """The two evaluations do not hold the same items; the message names the difference."""


@dataclass(frozen=True)
class Paired:
    """Counts and inference for one score per item before and after.

    ``lost`` are the items whose score fell, ``gained`` those whose score rose; ``delta`` is the change of the mean.
    ``p_value`` is the exact two-sided McNemar test (for shares, the sign test, which is the same on the counts), ``p_lost``
    the one-sided one against "no more lost than gained"; both take items as independent. ``ci`` is the 95 % interval of
    ``delta`` by ``method``: "newcombe_10" for scores of 0 and 1 of items that share nothing, else "student": the paired
    difference with its standard error over ``clusters``, C - 1 degrees of freedom.
    """

    n: int
    lost: int
    gained: int
    delta: float
    ci: tuple[float, float]
    method: str
    p_value: float
    p_lost: float
    standard_error: float | None
    clusters: int


def paired(
    before: Sequence[float],
    after: Sequence[float],
    confidence: float = 0.95,
    clusters: Sequence[Hashable] | None = None,
) -> Paired:
    """Compare two evaluations given as scores in [0, 1] of the same items in the same order.

    ``clusters`` names what each item shares with others; None when they share nothing.
    """
    if len(before) != len(after) or not before:
        raise ItemsDifferError(
            f"{len(before)} scores before, {len(after)} after: both must hold the same items, one or more"
        )
    if not all(0 <= score <= 1 for score in (*before, *after)):
        raise ValueError("scores must lie between 0 and 1")
    differences = [float(new) - float(old) for old, new in zip(before, after, strict=True)]
    lost, gained = sum(one < 0 for one in differences), sum(one > 0 for one in differences)
    n = len(differences)
    mean = average_at_k([[one] for one in differences], clusters)
    if mean.clusters == n and all(score in {0, 1} for score in (*before, *after)):
        both = sum(old == 1 == new for old, new in zip(before, after, strict=True))
        method, ci = "newcombe_10", newcombe(both, gained, lost, n - both - gained - lost, confidence)
    else:
        method, ci = "student", _student(mean, confidence)
    return Paired(
        n,
        lost,
        gained,
        math.fsum(differences) / n,
        ci,
        method,
        mcnemar_two_sided(lost, gained),
        mcnemar_one_sided(lost, gained),
        mean.standard_error,
        mean.clusters,
    )


def _student(mean: Mean, confidence: float) -> tuple[float, float]:
    """Student's interval of a mean difference; a single cluster says nothing, and clusters that all agree say little.

    Where no cluster differs from the others the estimated error is 0: the half-width is then the largest share of clusters
    that could differ unseen (Wilson's upper bound for none of C), since each can move the mean by as much.
    """
    if mean.standard_error is None:
        return (-1.0, 1.0)
    if mean.standard_error == 0:
        half = wilson(0, mean.clusters, confidence).high
    else:
        half = t_value(confidence, mean.clusters - 1) * mean.standard_error
    return max(-1.0, mean.mean - half), min(1.0, mean.mean + half)


def paired_items(before: Mapping[str, float], after: Mapping[str, float], confidence: float = 0.95) -> Paired:
    """The same by item id; raises :class:`ItemsDifferError` naming the difference unless the ids are the same."""
    check_same_items(before, after)
    return paired(list(before.values()), [after[item] for item in before], confidence)


def check_same_items(before: Mapping[str, object], after: Mapping[str, object]) -> None:
    """Raise :class:`ItemsDifferError` naming some items that only one side has."""
    only_before, only_after = sorted(before.keys() - after.keys()), sorted(after.keys() - before.keys())
    if not before and not after:
        raise ItemsDifferError("neither evaluation holds any item")
    if only_before or only_after:
        parts = [
            f"{len(ids)} only in the {side} ({', '.join(ids[:3])}{', ...' if len(ids) > 3 else ''})"
            for side, ids in (("first", only_before), ("second", only_after))
            if ids
        ]
        raise ItemsDifferError(
            f"the evaluations hold different items: {'; '.join(parts)}; compare evaluations of one suite"
        )


def mcnemar_one_sided(lost: int, gained: int) -> float:
    """P(Bin(lost + gained, 1/2) >= lost), exact; 1 when nothing changed."""
    changed = lost + gained
    return float(Fraction(sum(math.comb(changed, k) for k in range(lost, changed + 1)), 2**changed))


def mcnemar_two_sided(lost: int, gained: int) -> float:
    """Twice the smaller tail, at most 1: the exact two-sided test of the symmetric binomial."""
    return min(1.0, 2 * mcnemar_one_sided(max(lost, gained), min(lost, gained)))


def newcombe(both: int, gained: int, lost: int, neither: int, confidence: float = 0.95) -> tuple[float, float]:
    """Interval for p_after - p_before from paired counts: Newcombe 1998 (Statistics in Medicine 17, 2635), method 10.

    Wilson intervals of both proportions are combined with their estimated correlation, continuity-corrected as there.
    """
    z_value(confidence)
    n = both + gained + lost + neither
    after, before = (both + gained) / n, (both + lost) / n
    after_ci, before_ci = wilson(both + gained, n, confidence), wilson(both + lost, n, confidence)
    correlation = _correlation(both, gained, lost, neither)
    delta = after - before
    below_after, above_after = after - after_ci.low, after_ci.high - after
    below_before, above_before = before - before_ci.low, before_ci.high - before
    down = below_after**2 - 2 * correlation * below_after * above_before + above_before**2
    up = above_after**2 - 2 * correlation * above_after * below_before + below_before**2
    return max(-1.0, delta - math.sqrt(max(0.0, down))), min(1.0, delta + math.sqrt(max(0.0, up)))


def _correlation(both: int, gained: int, lost: int, neither: int) -> float:
    """Newcombe's phi: 0 when a margin is empty, and the numerator reduced by n/2 (not below 0) when it is positive."""
    n = both + gained + lost + neither
    margins = (both + gained) * (lost + neither) * (both + lost) * (gained + neither)
    if margins == 0:
        return 0.0
    numerator = float(both * neither - gained * lost)
    if numerator > 0:
        numerator = max(0.0, numerator - n / 2)
    return numerator / math.sqrt(margins)
