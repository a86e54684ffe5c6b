"""What a sweep over beta found: which point is best on the choosing items, and what the confirming items say of it.

Pure arithmetic on stored scores.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from core.evals.comparison import Paired, paired
from core.evals.metrics import wilson
from core.evals.stored import Scores
from core.weights.points import Target


@dataclass(frozen=True)
class Point:
    """One point of the sweep on the choosing items; ``accuracy`` is over those judged."""

    target: Target
    accuracy: float | None
    ci: tuple[float, float] | None
    judged: int

    def as_dict(self) -> dict[str, Any]:
        """As results show it."""
        return {
            "beta": self.target.beta,
            "target_step": self.target.step,
            "accuracy": self.accuracy,
            "ci": self.ci,
            "judged": self.judged,
        }


def point_of(target: Target, scores: Scores | None) -> Point:
    """Summarise one point; ``scores`` None where its weights gave no finite logits."""
    judged = [score for score in (scores or {}).values() if score is not None]
    if not judged:
        return Point(target, None, None, 0)
    interval = wilson(int(sum(judged)), len(judged))
    return Point(target, fmean(judged), (interval.low, interval.high), len(judged))


def best(points: Sequence[Point]) -> Point:
    """The highest accuracy, the smallest beta of equals: no more of a line than is needed."""
    return min(points, key=lambda point: (-(point.accuracy if point.accuracy is not None else -1.0), point.target.beta))


def compared(before: Mapping[str, float | None], after: Mapping[str, float | None]) -> Paired | None:
    """Pair the items that both have judged; None when there is none."""
    shared = [(old, new) for item, old in before.items() if old is not None and (new := after.get(item)) is not None]
    return paired([old for old, _ in shared], [new for _, new in shared]) if shared else None


def paired_dict(found: Paired | None) -> dict[str, Any] | None:
    """A comparison as results show it."""
    if found is None:
        return None
    return {
        "n": found.n,
        "lost": found.lost,
        "gained": found.gained,
        "delta": found.delta,
        "ci": list(found.ci),
        "p_value": found.p_value,
        "method": found.method,
    }


def statement(result: Mapping[str, Any]) -> str:
    """One sentence a person can quote."""
    line = f"on the line from step {result['a']['step']} to step {result['b']['step']}"
    chosen, confirmed = result.get("chosen"), result.get("confirmed")
    if chosen is None:
        return f"{len(result['points'])} points {line} were written; none was evaluated."
    if chosen["beta"] == 1:
        return f"No point {line} did better than step {result['b']['step']} itself on the {chosen['judged']} choosing items."
    name = f"beta {chosen['beta']:g} (step {chosen['target_step']:g})"
    if not confirmed or not confirmed.get("b"):
        return f"Best {line}: {name}; it was not confirmed."
    against = confirmed["b"]
    low, high = (100 * bound for bound in against["ci"])
    counts = f"{against['lost']} lost, {against['gained']} gained"
    return (
        f"Best {line}: {name}. On {against['n']} items that chose nothing it differs from step {result['b']['step']} by "
        f"{100 * against['delta']:+.1f} points (95 % {low:+.1f} to {high:+.1f}; {counts})."
    )
