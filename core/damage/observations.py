"""One look's paired observations, their tally, and what a rule answers.

An observation pairs the frozen base score ``b`` of an item with the current score ``c``; ``d = b - c`` is positive when
something was lost. This module counts and describes; it decides nothing.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

InfraPolicy = Literal["zero", "refuse"]
JsonDict = dict[str, Any]
Z_95 = 1.959963984540054


class RuleError(ValueError):
    """A rule that cannot work, or observations that do not fit it. ``param`` names the field, ``hint`` says how to mend it."""

    def __init__(self, param: str, message: str, hint: str = "") -> None:
        super().__init__(f"{param}: {message}" + (f" {hint}" if hint else ""))
        self.param = param
        self.message = message
        self.hint = hint


@dataclass(frozen=True)
class Observation:
    """One item at one look: frozen base score ``b``, current score ``c``, both in [0, 1].

    ``infra`` marks an item whose answer could not be judged because the machinery failed, even after a re-run; its ``c``
    is ignored.
    """

    item_id: str
    b: float
    c: float
    infra: bool = False

    @property
    def d(self) -> float:
        """Return ``b - c``, or 0 for an infrastructure failure."""
        return 0.0 if self.infra else self.b - self.c


@dataclass(frozen=True)
class Tally:
    """Counts of one look. ``lost`` and ``gained`` are sums of positive and negative parts of d, so halves can occur.

    ``histogram`` holds (d, count) sorted by d; ``delta`` is current minus base accuracy (negative is a loss) and ``ci`` its
    descriptive 95 % interval.
    """

    n: int
    lost: float
    gained: float
    infra: int
    delta: float
    ci: tuple[float, float]
    histogram: tuple[tuple[float, int], ...]
    lost_items: tuple[str, ...]
    gained_items: tuple[str, ...]

    def d_histogram(self) -> dict[str, int]:
        """Return the histogram of d with readable keys, for example ``{"-0.5": 3, "0": 190, "1": 7}``."""
        return {format(d, "g"): count for d, count in self.histogram}


@dataclass(frozen=True)
class LookDecision:
    """What a rule says at one look.

    ``crossed`` is about this look, ``decided`` stays true once any look crossed. ``state`` is plain JSON to be stored and
    handed to the next look. ``margin_rejected`` is the largest net loss (as a share of items) that is still rejected, or
    None when not even zero is, or when the rule does not estimate it. ``log_statistic`` is the natural logarithm where the
    statistic may be too large for a float; then ``statistic`` is capped at 1e300.
    """

    number: int
    statistic_name: str
    statistic: float
    threshold: float
    crossed: bool
    decided: bool
    watch: bool
    state: JsonDict
    margin_rejected: float | None
    tally: Tally
    log_statistic: float | None = None


def tally(observations: Sequence[Observation]) -> Tally:
    """Count one look. The order of the observations does not matter."""
    ordered = sorted(observations, key=lambda o: o.item_id)
    ds = [o.d for o in ordered]
    n = len(ds)
    counts = sorted(Counter(ds).items())
    delta, ci = paired_difference(counts)
    return Tally(
        n=n,
        lost=math.fsum(d for d in ds if d > 0),
        gained=math.fsum(-d for d in ds if d < 0),
        infra=sum(o.infra for o in ordered),
        delta=delta,
        ci=ci,
        histogram=tuple((d + 0.0, count) for d, count in counts),
        lost_items=tuple(o.item_id for o in ordered if o.d > 0),
        gained_items=tuple(o.item_id for o in ordered if o.d < 0),
    )


def paired_difference(counts: Sequence[tuple[float, int]]) -> tuple[float, tuple[float, float]]:
    """Return current minus base accuracy and its 95 % interval from a histogram of d.

    The interval is Bonett and Price's adjusted Wald interval for paired proportions (2012), which adds one lost and one
    gained item so that a look without any flip does not get an interval of width zero. Items are the clusters: all runs of
    one item are averaged in d first. It is descriptive: it holds for one look chosen in advance, not for all looks at once.
    """
    n = sum(count for _, count in counts)
    if n == 0:
        return 0.0, (-1.0, 1.0)
    total = math.fsum(d * count for d, count in counts)
    squares = math.fsum(d * d * count for d, count in counts)
    centre = total / (n + 2)
    spread = math.sqrt(max((squares + 2) / (n + 2) - centre * centre, 0.0) / (n + 2))
    low, high = -centre - Z_95 * spread, -centre + Z_95 * spread
    return -total / n + 0.0, (max(low, -1.0), min(high, 1.0))


def check_observations(observations: Sequence[Observation], *, m: int, infra_failures: InfraPolicy) -> None:
    """Refuse observations that are not the ``m`` distinct items the rule asked for, or have scores outside [0, 1]."""
    if len(observations) != m:
        raise RuleError("observations", f"{len(observations)} items were given, the frozen rule draws {m}.")
    if len({o.item_id for o in observations}) != m:
        raise RuleError("observations", "an item occurs twice in one look.", "Give each drawn item once.")
    for o in observations:
        if not (0.0 <= o.b <= 1.0 and (o.infra or 0.0 <= o.c <= 1.0)):
            raise RuleError("observations", f"item {o.item_id!r} has scores b={o.b}, c={o.c} outside [0, 1].")
    failed = [o.item_id for o in observations if o.infra]
    if failed and infra_failures == "refuse":
        raise RuleError(
            "observations",
            f"{len(failed)} items failed for infrastructure reasons (first: {failed[0]!r}).",
            "Re-run them: this rule was frozen with infra_failures = refuse.",
        )


def check_state(state: Mapping[str, Any], frozen: JsonDict) -> None:
    """Refuse a state that was made under other parameters: T, m, alpha and margin never change after the start."""
    made_under = state.get("frozen", frozen)
    changed = sorted(k for k in frozen.keys() | made_under.keys() if frozen.get(k) != made_under.get(k))
    if changed:
        raise RuleError(
            f"damage_stop.{changed[0]}",
            f"the run began with {made_under.get(changed[0])!r}, now it is {frozen.get(changed[0])!r}.",
            "A rule never changes after the first look; fork the run instead.",
        )


def mean_scores(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Average several base runs per item. All runs must hold the same items."""
    if not runs:
        raise RuleError("looks.base_runs", "no base run was given.")
    if any(run.keys() != runs[0].keys() for run in runs):
        raise RuleError("looks.base_runs", "the base runs hold different items.")
    return {item: math.fsum(run[item] for run in runs) / len(runs) for item in sorted(runs[0])}


def noise_floor(first: Mapping[str, float], second: Mapping[str, float]) -> float:
    """Return the share of items whose score differs between two runs of the same base model."""
    if first.keys() != second.keys() or not first:
        raise RuleError("looks.base_runs", "the noise floor needs two base runs over the same, non-empty items.")
    return sum(first[item] != second[item] for item in first) / len(first)
