"""Graders: one module per kind of item, each with a ``VERSION`` and a ``grade`` function without side effects.

They run inside the pool's worker processes (:mod:`core.tasks.pool`), because model text can make them hang or exhaust
memory. Nothing here evaluates model text as code: programs run in a sandbox of their own (:mod:`core.tasks.sandbox`).
"""

from core.tasks.items import Item
from core.tasks.verifiers.verdict import Judgement, Outcome, Verdict

__all__ = ["VERIFIERS", "Judgement", "Outcome", "Verdict", "cpu_limit", "grade", "time_limit", "version_of", "warm_up"]

_MATH_CPU_S = 4.0

VERIFIERS = ("math", "reasoning_gym", "code", "instructions")


def grade(verifier: str, item: Item, text: str) -> Judgement:
    """Judge ``text``, a completion for ``item``; raises ``ValueError`` for a verifier that does not exist."""
    match verifier:
        case "math":
            from core.tasks.verifiers import math

            return math.grade(item, text)
        case "reasoning_gym":
            from core.tasks.verifiers import reasoning_gym

            return reasoning_gym.grade(item, text)
        case "code":
            from core.tasks.verifiers import code

            return code.grade(item, text)
        case "instructions":
            from core.tasks.verifiers import instructions

            return instructions.grade(item, text)
        case _:
            raise ValueError(unknown(verifier))


def version_of(verifier: str) -> str:
    """The grader's version, recorded with every verdict; it changes whenever a judgement could."""
    match verifier:
        case "math":
            from core.tasks.verifiers import math

            return math.VERSION
        case "reasoning_gym":
            from core.tasks.verifiers import reasoning_gym

            return reasoning_gym.VERSION
        case "code":
            from core.tasks.verifiers import code

            return code.version()
        case "instructions":
            from core.tasks.verifiers import instructions

            return instructions.VERSION
        case _:
            raise ValueError(unknown(verifier))


def warm_up(verifier: str) -> None:
    """Import what the grader needs, so that the first answer's time limit does not pay for it."""
    match verifier:
        case "math":
            from core.tasks.verifiers import math

            math.warm_up()
        case "reasoning_gym":
            from core.tasks.verifiers import reasoning_gym

            reasoning_gym.warm_up()
        case "code":
            from core.tasks.verifiers import code

            code.warm_up()
        case "instructions":
            from core.tasks.verifiers import instructions

            instructions.warm_up()
        case _:
            raise ValueError(unknown(verifier))


def time_limit(verifier: str, usual: float) -> float:
    """Wall-clock seconds for one answer: ``usual``, but never less than what running an item's tests may take."""
    if verifier == "code":
        from core.tasks.verifiers.code import ITEM_WALL_S

        return max(usual, ITEM_WALL_S)
    return usual


def cpu_limit(verifier: str, wall_s: float) -> float:
    """CPU seconds for one answer whose wall-clock limit is ``wall_s``.

    For math it is what ends an answer that computes without end: a busy machine stretches the wall clock of an ordinary
    answer but not its CPU time. The slowest found, a formula of Minerva's in a fresh process, took 2 s. Elsewhere it is a
    second line of defence only.
    """
    return min(wall_s + 1, _MATH_CPU_S) if verifier == "math" else wall_s + 1


def unknown(verifier: str) -> str:
    """The message for a verifier name that is not in :data:`VERIFIERS`."""
    return f"verifier {verifier!r} is not known; allowed: {', '.join(VERIFIERS)}"
