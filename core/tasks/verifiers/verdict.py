"""The result of grading one completion.

It holds values only. A failure of the grader is a verdict with a reason, never a silent zero.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Outcome(StrEnum):
    """How a completion was judged. ``infra_error`` says that it was not: such a sample is masked."""

    CORRECT = "correct"
    WRONG = "wrong"
    NO_ANSWER = "no_answer"
    TIMEOUT = "timeout"
    ERROR = "error"
    INFRA_ERROR = "infra_error"


@dataclass(frozen=True)
class Verdict:
    """One judgement: what, why, the text that was taken as the answer, by which grader, in how many milliseconds.

    ``details`` are further numbers that a grader has (instructions: strict and loose, of the prompt and of its parts).
    """

    verdict: Outcome
    reason: str
    extracted: str | None
    verifier: str
    version: str
    ms: float = 0.0
    details: Mapping[str, float] = field(default_factory=dict)

    @property
    def score(self) -> float | None:
        """1.0 for correct, 0.0 for every other judgement of the answer, ``None`` when it could not be judged."""
        match self.verdict:
            case Outcome.CORRECT:
                return 1.0
            case Outcome.INFRA_ERROR:
                return None
            case _:
                return 0.0


@dataclass(frozen=True)
class Judgement:
    """What a grader returns; the pool adds the grader's name, version and time to make a :class:`Verdict`."""

    verdict: Outcome
    reason: str
    extracted: str | None = None
    details: Mapping[str, float] = field(default_factory=dict)
