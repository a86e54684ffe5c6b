"""The rule ``mcnemar_spending``: an exact one-sided McNemar test on a small fixed panel, alpha split over T looks.

The same items are asked at every look and compared with the first frozen base run. With n10 items lost and n01 gained,
p = P(Bin(n10 + n01, 1/2) >= n10), and the rule decides when p <= alpha/T. By Bonferroni this holds under any dependence
between looks, for independent items, and only if nothing else (rollback, n, beta) is chosen on the panel. It is weak on
small panels; ``simulate`` says what it can detect. It estimates no margin.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any, ClassVar

from core.damage import draws
from core.damage.observations import (
    InfraPolicy,
    JsonDict,
    LookDecision,
    Observation,
    RuleError,
    check_observations,
    check_state,
    tally,
)


def one_sided_p(lost: int, gained: int) -> float:
    """Return P(Bin(lost + gained, 1/2) >= lost), summed in exact integers; 1 when nothing flipped."""
    flips = lost + gained
    tail = sum(math.comb(flips, k) for k in range(lost, flips + 1))
    return float(Fraction(tail, 2**flips))


def panel_hash(item_ids: Sequence[str]) -> str:
    """Return a fingerprint of the panel's set of items."""
    return hashlib.sha256("\n".join(sorted(item_ids)).encode()).hexdigest()


def check_panel(state: Mapping[str, Any], observations: Sequence[Observation]) -> str:
    """Refuse another set of items than the first look's; return the panel's fingerprint."""
    fingerprint = panel_hash([o.item_id for o in observations])
    if state.get("panel", fingerprint) != fingerprint:
        raise RuleError("observations", "the items differ from the panel of the first look.", "Ask the same items.")
    return fingerprint


@dataclass(frozen=True)
class McNemarSpending:
    """The frozen rule. ``m`` is the size of the fixed panel, ``looks`` is T.

    ``watch`` keeps the meaning it has for ``eprocess``: without damage the status ever says watch with a chance of at most
    1/watch, so here it does so at p <= 1/(watch T).
    """

    n_pool: int
    m: int
    looks: int
    alpha: float = 0.05
    watch: float = 5.0
    action: str = "stop"
    infra_failures: InfraPolicy = "zero"
    base_runs: int = 2

    name: ClassVar[str] = "mcnemar_spending"
    statistic_name: ClassVar[str] = "mcnemar_p"
    reference: ClassVar[str] = "first base run"

    @property
    def threshold(self) -> float:
        """Return alpha/T, at or below which the rule decides."""
        return self.alpha / self.looks

    def frozen(self) -> JsonDict:
        """Return every parameter, for the prespecification and the state."""
        return {"rule": self.name, **asdict(self), "draw": "fixed panel drawn before the first look"}

    def base_scores(self, runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
        """Return the first base run; the others only show the noise floor."""
        if not runs:
            raise RuleError("looks.base_runs", "no base run was given.")
        return dict(runs[0])

    def items(self, key: bytes, t: int, checkpoint_sha256: str, pool: Sequence[str]) -> list[str]:
        """Return the panel, the same at every look."""
        return draws.panel(key, pool, self.m)

    def earliest_stop(self, base_correct: float | None = None) -> int | None:
        """Return 1 if losing every answered item would decide at once, else None: no later look is easier."""
        losable = self.m if base_correct is None else min(self.m, math.ceil(base_correct))
        return 1 if one_sided_p(losable, 0) <= self.threshold else None

    def look(self, state: Mapping[str, Any], observations: Sequence[Observation]) -> LookDecision:
        """Take one look's observations. After T looks nothing can decide any more: alpha is spent."""
        frozen = self.frozen()
        check_state(state, frozen)
        check_observations(observations, m=self.m, infra_failures=self.infra_failures)
        fingerprint = check_panel(state, observations)
        for o in observations:
            if o.b not in (0.0, 1.0) or not (o.infra or o.c in (0.0, 1.0)):
                raise RuleError(
                    "observations",
                    f"item {o.item_id!r} has b={o.b}, c={o.c}; McNemar's test needs 0 or 1.",
                    "Use the first base run, not the mean of several.",
                )
        counted = tally(observations)
        number = state.get("looks", 0) + 1
        p = one_sided_p(round(counted.lost), round(counted.gained))
        crossed = number <= self.looks and p <= self.threshold
        decided_at = state.get("decided_at") or (number if crossed else None)
        watch = p <= 1.0 / (self.watch * self.looks)
        return LookDecision(
            number=number,
            statistic_name=self.statistic_name,
            statistic=p,
            threshold=self.threshold,
            crossed=crossed,
            decided=decided_at is not None,
            watch=watch,
            state={
                "frozen": frozen,
                "looks": number,
                "panel": fingerprint,
                "decided_at": decided_at,
                "watch": watch,
                "margin_rejected": None,
                "infra": state.get("infra", 0) + counted.infra,
            },
            margin_rejected=None,
            tally=counted,
        )
