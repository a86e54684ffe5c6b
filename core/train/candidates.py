"""Which of several jumps to take: the best on validation items that a fresh confirming draw does not show damaged.

Pure decisions on scores: who is asked and how is the caller's. Nothing here is evidence of the damage stop, whose items are
others; it only keeps a jump that visibly harms from being taken.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any, Literal

from core.evals.comparison import mcnemar_one_sided
from core.evals.stored import Scores
from core.streams import stream
from core.tasks.items import Item

ALPHA = 0.05
"""A jump whose confirming draw has more items lost than this explains by luck (one-sided exact McNemar) is not taken."""

Draw = Literal["candidate", "confirm"]
Ask = Callable[[int, Draw], Scores | None]
"""Scores of the weights after a jump worth n, on one of the two draws; None where they give no finite logits."""


@dataclass(frozen=True)
class Tried:
    """A candidate on the choosing draw. ``accuracy`` is over the judged items; None where the weights are unusable."""

    n: int
    accuracy: float | None
    judged: int


@dataclass(frozen=True)
class Confirmed:
    """A candidate against staying (n = 0) on the confirming draw, items judged under both."""

    n: int
    lost: int
    gained: int
    p_lost: float
    damaged: bool


@dataclass(frozen=True)
class Choice:
    """What was decided and on what grounds; ``n`` 0 means to stay."""

    n: int
    tried: tuple[Tried, ...]
    confirmed: tuple[Confirmed, ...]

    def as_dict(self) -> dict[str, Any]:
        """For the event that records the decision."""
        return {
            "n": self.n,
            "tried": [asdict(one) for one in self.tried],
            "confirmed": [asdict(one) for one in self.confirmed],
        }

    def accuracy(self, n: int) -> float | None:
        """Accuracy of one candidate on the choosing draw."""
        return next(one.accuracy for one in self.tried if one.n == n)


def halves(items: Sequence[Item], seed: int, step: int) -> dict[Draw, list[Item]]:
    """Split the validation items anew for each step: one half chooses, the other, which chose nothing, confirms."""
    order = list(range(len(items)))
    stream(seed, "validation", step).shuffle(order)
    half = (len(items) + 1) // 2
    return {
        "candidate": [items[index] for index in sorted(order[:half])],
        "confirm": [items[index] for index in sorted(order[half:])],
    }


def choose(candidates: Sequence[int], ask: Ask) -> Choice:
    """Try every candidate and 0, and go down the ranking until one is not shown damaged; 0 always passes.

    Equal accuracies rank by the smaller n. ``ask`` may raise to interrupt; nothing is kept then.
    """
    tried = [_tried(n, ask(n, "candidate")) for n in (0, *candidates)]
    usable = [one for one in tried if one.accuracy is not None]
    confirmed: list[Confirmed] = []
    for one in sorted(usable, key=lambda one: (-(one.accuracy or 0.0), one.n)):
        if one.n == 0:
            break
        after = ask(one.n, "confirm")
        before = ask(0, "confirm")
        if after is None or before is None:
            continue
        found = _confirmed(one.n, before, after)
        confirmed.append(found)
        if not found.damaged:
            return Choice(one.n, tuple(tried), tuple(confirmed))
    return Choice(0, tuple(tried), tuple(confirmed))


def _tried(n: int, scores: Scores | None) -> Tried:
    judged = [score for score in (scores or {}).values() if score is not None]
    return Tried(n, fmean(judged) if judged else None, len(judged))


def _confirmed(n: int, before: Mapping[str, float | None], after: Mapping[str, float | None]) -> Confirmed:
    pairs = [(old, new) for item, old in before.items() if old is not None and (new := after[item]) is not None]
    lost, gained = sum(new < old for old, new in pairs), sum(new > old for old, new in pairs)
    p_lost = mcnemar_one_sided(lost, gained)
    return Confirmed(n, lost, gained, p_lost, p_lost <= ALPHA)
