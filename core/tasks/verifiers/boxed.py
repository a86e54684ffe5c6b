"""Finding the answer's place in a completion: after the thinking, in the last brace-balanced ``\\boxed{...}``.

One extractor for training and evaluation. It reads text only; what the content means is the graders' business.
"""

import re
from dataclasses import dataclass

_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_THINK_END = "</think>"


@dataclass(frozen=True)
class Box:
    """Content of a box and the span of the whole command in the text."""

    content: str
    start: int
    end: int


def after_thinking(text: str) -> str:
    """The text behind the last ``</think>``, or all of it where there is none."""
    return text.rpartition(_THINK_END)[2]


def last_boxed(text: str) -> Box | None:
    """The last box whose braces balance; an outer box counts, not one nested inside it.

    A ``\\boxed`` that is only mentioned (no brace follows) is not a box; neither is a last one that the length limit cut
    open: then nothing was answered and ``None`` is returned, rather than an earlier, superseded box.
    """
    last: Box | None = None
    position = 0
    while (match := _BOX.search(text, position)) is not None:
        end = _closing_brace(text, match.end())
        if end is None:
            return None
        last = Box(text[match.end() : end], match.start(), end + 1)
        position = end + 1
    return last


def _closing_brace(text: str, position: int) -> int | None:
    """Index of the brace that closes the one opened just before ``position``; escaped braces do not count."""
    depth = 1
    while position < len(text):
        character = text[position]
        if character == "\\":
            position += 2
            continue
        depth += (character == "{") - (character == "}")
        if depth == 0:
            return position
        position += 1
    return None
