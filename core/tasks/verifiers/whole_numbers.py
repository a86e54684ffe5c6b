"""The math grader's short cut: a box that holds a whole number against a reference that is one.

Most answers of GSM8K and AIME are such. Reading two numbers needs no expression parser and cannot hang, so the pool does it
without handing the answer to a process. It gives the judgement that the whole grader gives, or none at all.
"""

import re

from core.tasks.items import Item
from core.tasks.verifiers.boxed import after_thinking, last_boxed
from core.tasks.verifiers.verdict import Judgement, Outcome

_NUMBER = re.compile(r"-?[0-9]{1,30}")
_MAX_TEXT = 1_000_000


def judged(item: Item, text: str) -> Judgement | None:
    """The judgement where both the last box and the reference are whole numbers of at most 30 digits, else None."""
    if item.answer is None or len(text) > _MAX_TEXT or _NUMBER.fullmatch(gold := item.answer.strip()) is None:
        return None
    box = last_boxed(after_thinking(text))
    if box is None or _NUMBER.fullmatch(answer := box.content.strip()) is None:
        return None
    return verdict_on(int(gold) == int(answer), answer)


def verdict_on(equal: bool, answer: str) -> Judgement:
    """The judgement on an answer that was read."""
    if equal:
        return Judgement(Outcome.CORRECT, "equals the reference", answer)
    return Judgement(Outcome.WRONG, "does not equal the reference", answer)
