"""The rule ``threshold``: a plain drop of at least x points at j consecutive looks.

It is offered because people expect it. It has no error guarantee: its rate of false stops depends on the panel, the noise
and the number of looks, so the status carries a simulated rate beside it (``simulate.detects``). The same fixed panel is
asked at every look.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from core.damage import draws
from core.damage.mcnemar import check_panel
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

# A drop of exactly x points must count although 100 * (lost - gained) / m is rounded.
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Threshold:
    """The frozen rule: ``points`` are percentage points of the panel's accuracy, ``consecutive`` is j."""

    n_pool: int
    m: int
    looks: int
    points: float
    consecutive: int = 2
    action: str = "stop"
    infra_failures: InfraPolicy = "zero"
    base_runs: int = 2

    name: ClassVar[str] = "threshold"
    statistic_name: ClassVar[str] = "drop_points"
    reference: ClassVar[str] = "mean of the base runs"

    @property
    def threshold(self) -> float:
        """Return the drop in points that a look must reach."""
        return self.points

    def frozen(self) -> JsonDict:
        """Return every parameter, for the prespecification and the state."""
        return {"rule": self.name, **asdict(self), "draw": "fixed panel drawn before the first look"}

    def base_scores(self, runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
        """Return the mean of the base runs per item."""
        return mean_scores(runs)

    def items(self, key: bytes, t: int, checkpoint_sha256: str, pool: Sequence[str]) -> list[str]:
        """Return the panel, the same at every look."""
        return draws.panel(key, pool, self.m)

    def earliest_stop(self, base_correct: float | None = None) -> int | None:
        """Return j if losing every answered item is a drop of x points, else None."""
        losable = self.m if base_correct is None else min(self.m, math.ceil(base_correct))
        return self.consecutive if 100.0 * losable / self.m >= self.points - _ROUNDING else None

    def look(self, state: Mapping[str, Any], observations: Sequence[Observation]) -> LookDecision:
        """Take one look's observations. After T looks nothing decides: the stated false-stop rate holds for T looks."""
        frozen = self.frozen()
        check_state(state, frozen)
        check_observations(observations, m=self.m, infra_failures=self.infra_failures)
        fingerprint = check_panel(state, observations)
        counted = tally(observations)
        drop = -100.0 * counted.delta + 0.0
        number = state.get("looks", 0) + 1
        streak = state.get("streak", 0) + 1 if drop >= self.points - _ROUNDING else 0
        crossed = number <= self.looks and streak >= self.consecutive
        decided_at = state.get("decided_at") or (number if crossed else None)
        watch = streak > 0
        return LookDecision(
            number=number,
            statistic_name=self.statistic_name,
            statistic=drop,
            threshold=self.points,
            crossed=crossed,
            decided=decided_at is not None,
            watch=watch,
            state={
                "frozen": frozen,
                "looks": number,
                "panel": fingerprint,
                "streak": streak,
                "decided_at": decided_at,
                "watch": watch,
                "margin_rejected": None,
                "infra": state.get("infra", 0) + counted.infra,
            },
            margin_rejected=None,
            tally=counted,
        )
