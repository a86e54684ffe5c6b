"""What a rule can detect and how often it stops by chance, by a small seeded simulation.

Power depends on how many items flip without damage, so every figure names base accuracy, gained share and pool size. The
simulation works on counts (lost, gained, same), not on items, with scores of 0 and 1; its cost does not grow with the pool.
Fresh draws are hypergeometric from a pool of fixed composition. A fixed panel is multinomial once; from look to look each
item keeps its luck with probability ``persistence`` and otherwise draws it anew.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from core.damage.eprocess import BETS, EProcess, bet_grid
from core.damage.kinds import Rule
from core.damage.mcnemar import McNemarSpending
from core.damage.observations import JsonDict, RuleError
from core.damage.threshold import Threshold

TARGET_POWER = 0.8
# False stops are largest at different persistences for different rules; the largest rate over these is reported.
PERSISTENCES = (0.0, 0.5, 0.85, 1.0)
_WORK = 12_000

Counts = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Scenario:
    """Shares of the pool: ``gained`` and ``lost`` without damage, and ``drop`` lost on top from look ``from_look`` on."""

    base_accuracy: float = 0.6
    gained: float = 0.05
    lost: float = 0.05
    drop: float = 0.0
    from_look: int = 1
    persistence: float = 1.0

    def __post_init__(self) -> None:
        """Refuse shares that no pool can have."""
        if not 0.0 <= self.base_accuracy <= 1.0:
            raise RuleError("base_accuracy", f"{self.base_accuracy} is not a share in [0, 1].")
        if min(self.gained, self.lost, self.drop) < 0.0 or not 0.0 <= self.persistence <= 1.0:
            raise RuleError("scenario", "shares must not be negative and persistence must lie in [0, 1].")
        if self.lost + self.drop > self.base_accuracy + 1e-12:
            raise RuleError("drop", f"more is lost than the base answers ({self.base_accuracy}).")
        if self.gained > 1.0 - self.base_accuracy + 1e-12:
            raise RuleError("gained", f"more is gained than the base fails ({1.0 - self.base_accuracy:g}).")

    def lost_at(self, look: int) -> float:
        """Return the share lost at ``look``."""
        return self.lost + (self.drop if look >= self.from_look else 0.0)


@dataclass(frozen=True)
class Simulated:
    """``stopped`` is the share of simulated runs that stopped, ``median_look`` the median look of those, if any."""

    stopped: float
    median_look: float | None
    runs: int


def simulate(rule: Rule, scenario: Scenario, *, runs: int = 1000, seed: int = 0) -> Simulated:
    """Simulate ``runs`` runs of T looks each under ``rule``; the same seed gives the same answer."""
    generator = np.random.default_rng(seed)
    if isinstance(rule, EProcess):
        stopped_at_R = _fresh_draws(rule, scenario, runs, generator)
    else:
        stopped_at_R = _fixed_panel(rule, scenario, runs, generator)
    stops = stopped_at_R[stopped_at_R > 0]
    return Simulated(
        stopped=float(len(stops)) / runs,
        median_look=float(np.median(stops)) if len(stops) else None,
        runs=runs,
    )


def detects(rule: Rule, *, base_accuracy: float = 0.6, gained: float = 0.05, seed: int = 0) -> JsonDict:
    """Return the smallest drop, in whole points, that stops a run with a chance of at least 80 %.

    Damage begins after a third of the looks and stays. ``points`` is None when no drop is detected so often. On a fixed
    panel every look shares the same luck (persistence 1), the least favourable case. ``gained`` is cut to what the base
    leaves to gain and to lose. ``threshold`` also carries ``false_stop_rate``, the largest over several persistences.
    """
    return dict(_detects(rule, base_accuracy, gained, seed))


def false_stop_rate(rule: Rule, *, base_accuracy: float, gained: float, runs: int = 1000, seed: int = 0) -> float:
    """Return the share of undamaged runs that stop: the largest over ``PERSISTENCES``."""
    scenarios = (Scenario(base_accuracy, gained, gained, persistence=kept) for kept in PERSISTENCES)
    return max(simulate(rule, scenario, runs=runs, seed=seed).stopped for scenario in scenarios)


@lru_cache(maxsize=256)
def _detects(rule: Rule, base_accuracy: float, gained: float, seed: int) -> JsonDict:
    churn = min(gained, 1.0 - base_accuracy, base_accuracy)
    runs = max(100, min(400, _WORK // rule.looks))
    start = max(1, math.ceil(rule.looks / 3))

    def power(points: int) -> float:
        drop = min(points / 100.0, base_accuracy - churn)
        scenario = Scenario(base_accuracy, churn, churn, drop, start)
        return simulate(rule, scenario, runs=runs, seed=seed).stopped

    points = _smallest(power, math.floor(100.0 * (base_accuracy - churn) + 1e-9))
    result: JsonDict = {
        "points": points,
        "power": None if points is None else round(power(points), 3),
        "base_accuracy": base_accuracy,
        "gained_share": churn,
        "n_pool": rule.n_pool,
        "m": rule.m,
        "looks": rule.looks,
        "from_look": start,
        "simulated_runs": runs,
    }
    if isinstance(rule, Threshold):
        result["false_stop_rate"] = false_stop_rate(rule, base_accuracy=base_accuracy, gained=churn, seed=seed)
    return result


def _smallest(power: Callable[[int], float], highest: int) -> int | None:
    """Bisect for the smallest number of points with enough power; power grows with the drop up to simulation noise."""
    if highest < 1 or power(highest) < TARGET_POWER:
        return None
    low, high = 0, highest
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if power(middle) >= TARGET_POWER else (middle, high)
    return high


def _fresh_draws(rule: EProcess, scenario: Scenario, runs: int, generator: np.random.Generator) -> Counts:
    d_D = np.array([1.0, -1.0, 0.0])
    log_factor_DL = np.log1p(bet_grid(rule.margin)[None, :] * (d_D - rule.margin)[:, None])
    log_q_RL = np.full((runs, len(BETS)), -np.inf)
    stopped_at_R = np.zeros(runs, dtype=np.int64)
    for t in range(1, rule.looks + 1):
        lost, gained = round(rule.n_pool * scenario.lost_at(t)), round(rule.n_pool * scenario.gained)
        pool = [lost, gained, rule.n_pool - lost - gained]
        counts_RD = generator.multivariate_hypergeometric(pool, rule.m, size=runs)
        log_q_RL = np.logaddexp(log_q_RL, -math.log(rule.looks)) + counts_RD @ log_factor_DL
        log_mean_R = np.logaddexp.reduce(log_q_RL, axis=1) - math.log(len(BETS))
        unused = (rule.looks - t) / rule.looks
        log_m_R = np.logaddexp(math.log(unused), log_mean_R) if unused > 0 else log_mean_R
        stopped_at_R = np.where((stopped_at_R == 0) & (log_m_R >= -math.log(rule.alpha)), t, stopped_at_R)
    return stopped_at_R


def _fixed_panel(
    rule: McNemarSpending | Threshold, scenario: Scenario, runs: int, generator: np.random.Generator
) -> Counts:
    crosses = _panel_test(rule)
    stopped_at_R = np.zeros(runs, dtype=np.int64)
    streak_R = np.zeros(runs, dtype=np.int64)
    needed = rule.consecutive if isinstance(rule, Threshold) else 1
    shares = _shares(scenario, 1)
    counts_RD = generator.multinomial(rule.m, shares, size=runs)
    for t in range(1, rule.looks + 1):
        if t > 1:
            counts_RD = _next_look(counts_RD, scenario, t, generator)
        streak_R = np.where(crosses(counts_RD[:, 0], counts_RD[:, 1]), streak_R + 1, 0)
        stopped_at_R = np.where((stopped_at_R == 0) & (streak_R >= needed), t, stopped_at_R)
    return stopped_at_R


def _next_look(counts_RD: Counts, scenario: Scenario, t: int, generator: np.random.Generator) -> Counts:
    """Let unchanged items be damaged if damage begins at ``t``, then let each item draw its luck anew or keep it."""
    if t == scenario.from_look and scenario.drop > 0.0:
        same = 1.0 - scenario.lost - scenario.gained
        hit_R = generator.binomial(counts_RD[:, 2], min(1.0, scenario.drop / same))
        counts_RD = counts_RD + np.stack([hit_R, np.zeros_like(hit_R), -hit_R], axis=1)
    if scenario.persistence == 1.0:
        return counts_RD
    kept_RD = generator.binomial(counts_RD, scenario.persistence)
    anew_R = (counts_RD - kept_RD).sum(axis=1)
    moved: Counts = kept_RD + generator.multinomial(anew_R, _shares(scenario, t))
    return moved


def _shares(scenario: Scenario, t: int) -> list[float]:
    lost = scenario.lost_at(t)
    return [lost, scenario.gained, max(0.0, 1.0 - lost - scenario.gained)]


def _panel_test(rule: McNemarSpending | Threshold) -> Callable[[Counts, Counts], Flags]:
    """Return a vectorised test of (lost, gained) for one look."""
    if isinstance(rule, Threshold):
        least = rule.points / 100.0 * rule.m - 1e-9
        return lambda lost_R, gained_R: lost_R - gained_R >= least
    from scipy.special import bdtrc  # imported here: it takes longer to load than all else in this package

    def crosses(lost_R: Counts, gained_R: Counts) -> Flags:
        tail_R = bdtrc(np.maximum(lost_R - 1, 0), lost_R + gained_R, 0.5)
        p_R = np.where(lost_R == 0, 1.0, tail_R)
        flags: Flags = p_R <= rule.threshold
        return flags

    return crosses
