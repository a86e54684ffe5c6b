"""The rule ``eprocess``: a betting test on fresh draws from a frozen pool, valid at every look.

For a pool of N items and d = b - c in [-1, 1], look t draws m items uniformly without replacement and computes

    E_t(l) = prod over drawn items of (1 + l (d - margin))
    Q_t(l) = (Q_{t-1}(l) + w_t) E_t(l),  Q_0 = 0,  w_t = 1/T for t <= T and 0 after
    M_t    = (1 - sum_{s<=t} w_s) + mean over l of Q_t(l)

over a grid of bets l. While the pool's mean d does not exceed the margin, E[E_t(l) | past] <= 1: every factor is
positive and, by Maclaurin's inequality, the mean product over draws without replacement is at most the power of the mean
factor. So M is a supermartingale that starts at 1, and by Ville's inequality it ever reaches 1/alpha with probability at
most alpha, whatever the training does. The guarantee is about the pool's items; it does not speak of other items.
M is never reset. The state stores the histogram of d of every look, from which everything is recomputed: the result does
not depend on how often a run was resumed.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import repeat
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from core.damage import draws
from core.damage.observations import (
    InfraPolicy,
    JsonDict,
    LookDecision,
    Observation,
    check_observations,
    check_state,
    mean_scores,
    tally,
)

BETS = (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
STATISTIC_CAP = 1e300
_MARGIN_STEPS = 1000

Histogram = Sequence[tuple[float, int]]


def bet_grid(margin: float) -> NDArray[np.float64]:
    """Return the bets l = BETS / (1 + margin); every factor 1 + l (d - margin) is then at least 0.1."""
    return np.asarray(BETS, dtype=np.float64) / (1.0 + margin)


def log_e_values(histogram: Histogram, margin: float) -> NDArray[np.float64]:
    """Return log E_t(l) for every bet, from the histogram of d of one look."""
    d_D = np.array([d for d, _ in histogram], dtype=np.float64)
    count_D = np.array([count for _, count in histogram], dtype=np.float64)
    log_factor_LD = np.log1p(bet_grid(margin)[:, None] * (d_D - margin)[None, :])
    log_e_L: NDArray[np.float64] = log_factor_LD @ count_D
    return log_e_L


def log_process(histograms: Iterable[Histogram], planned_looks: int, margin: float) -> Iterator[float]:
    """Yield log M_1, log M_2, ... for the looks' histograms."""
    log_q_L = np.full(len(BETS), -np.inf)
    log_weight = -math.log(planned_looks)
    for t, histogram in enumerate(histograms, start=1):
        started_L = np.logaddexp(log_q_L, log_weight) if t <= planned_looks else log_q_L
        log_q_L = started_L + log_e_values(histogram, margin)
        yield log_martingale(log_q_L, t, planned_looks)


def log_martingale(log_q_L: NDArray[np.float64], t: int, planned_looks: int) -> float:
    """Return log M_t from log Q_t(l) and the weight that no look has used yet."""
    log_mean = float(np.logaddexp.reduce(log_q_L)) - math.log(len(log_q_L))
    unused = max(planned_looks - t, 0) / planned_looks
    return float(np.logaddexp(math.log(unused), log_mean)) if unused > 0 else log_mean


def largest_margin_rejected(histograms: Sequence[Histogram], planned_looks: int, alpha: float) -> float | None:
    """Return the largest margin, in thousandths, whose own process ever reached 1/alpha; None if margin 0 did not.

    With probability at least 1 - alpha, at all times at once, the pool's net loss exceeded this margin at some look.
    M falls as the margin grows (each factor is 1 + g ((d + 1)/(1 + margin) - 1) for a fixed g), so bisection finds it.
    """

    def rejected(thousandths: int) -> bool:
        return max(log_process(histograms, planned_looks, thousandths / _MARGIN_STEPS)) >= -math.log(alpha)

    if not histograms or not rejected(0):
        return None
    low, high = 0, _MARGIN_STEPS
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if rejected(middle) else (low, middle)
    return low / _MARGIN_STEPS


@dataclass(frozen=True)
class EProcess:
    """The frozen rule. ``looks`` is T; ``watch`` is the value of M from which the status says watch."""

    n_pool: int
    m: int
    looks: int
    alpha: float = 0.05
    margin: float = 0.01
    watch: float = 5.0
    action: str = "stop"
    infra_failures: InfraPolicy = "zero"
    base_runs: int = 2

    name: ClassVar[str] = "eprocess"
    statistic_name: ClassVar[str] = "e_process"
    reference: ClassVar[str] = "mean of the base runs"

    @property
    def threshold(self) -> float:
        """Return 1/alpha, at or above which the rule decides."""
        return 1.0 / self.alpha

    def frozen(self) -> JsonDict:
        """Return every parameter and formula input, for the prespecification and the state."""
        return {
            "rule": self.name,
            **asdict(self),
            "bets": list(BETS),
            "weights": "1/looks",
            "draw": "fresh at every look",
        }

    def base_scores(self, runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
        """Return the frozen b of each item: its mean over the base runs."""
        return mean_scores(runs)

    def items(self, key: bytes, t: int, checkpoint_sha256: str, pool: Sequence[str]) -> list[str]:
        """Return the items to ask at look ``t``."""
        return draws.draw(key, t, checkpoint_sha256, pool, self.m)

    def earliest_stop(self, base_correct: float | None = None) -> int | None:
        """Return the first look that could decide if every item the base answered were lost; None if none of T could."""
        losable = self.m if base_correct is None else min(self.m, math.ceil(base_correct))
        worst: Histogram = [(0.0, self.m - losable), (1.0, losable)]
        path = log_process(repeat(worst, self.looks), self.looks, self.margin)
        return next((t for t, log_m in enumerate(path, start=1) if log_m >= -math.log(self.alpha)), None)

    def look(self, state: Mapping[str, Any], observations: Sequence[Observation]) -> LookDecision:
        """Take one look's observations. ``state`` is ``{}`` before the first look, then the last decision's state."""
        frozen = self.frozen()
        check_state(state, frozen)
        check_observations(observations, m=self.m, infra_failures=self.infra_failures)
        counted = tally(observations)
        histograms = [*state.get("histograms", []), [[d, count] for d, count in counted.histogram]]
        path = list(log_process(histograms, self.looks, self.margin))
        number, log_m = len(path), path[-1]
        crossed = log_m >= -math.log(self.alpha)
        decided_at = state.get("decided_at") or (number if crossed else None)
        margin_rejected = largest_margin_rejected(histograms, self.looks, self.alpha)
        watch = log_m >= math.log(self.watch)
        return LookDecision(
            number=number,
            statistic_name=self.statistic_name,
            statistic=math.exp(log_m) if log_m < math.log(STATISTIC_CAP) else STATISTIC_CAP,
            threshold=self.threshold,
            crossed=crossed,
            decided=decided_at is not None,
            watch=watch,
            state={
                "frozen": frozen,
                "looks": number,
                "histograms": histograms,
                "decided_at": decided_at,
                "watch": watch,
                "margin_rejected": margin_rejected,
                "infra": state.get("infra", 0) + counted.infra,
            },
            margin_rejected=margin_rejected,
            tally=counted,
            log_statistic=log_m,
        )
