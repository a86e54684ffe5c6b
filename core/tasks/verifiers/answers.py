"""The outer structure of an answer: number or expression, list, set, tuple or interval, union, matrix.

Structure is where graders go wrong most (a part taken for the whole, an open end for a closed one), so it is read here and
compared piece by piece; what is inside the pieces is for :mod:`core.tasks.verifiers.math`.
"""

import re
from dataclasses import dataclass

from core.tasks.verifiers.latex_text import matching_end, plain, split_top

_COMMA = re.compile(r"[,;]")
_JOINER = re.compile(r",?\s*(?:\\text\s*\{\s*(?:and|or)\s*\}|(?<![\\a-zA-Z])(?:and|or)(?![a-zA-Z]))\s*")
_CUP = re.compile(r"\\cup(?![a-zA-Z])")
_IN = re.compile(r"\\in(?![a-zA-Z])")
_COMPARISON = re.compile(r"\\le(?![a-zA-Z])|\\ge(?![a-zA-Z])|<|>")
_THOUSANDS = re.compile(r"[+-]?\d{1,3}(?:,\d{3})+(?:\.\d+)?(?![\d,])")
_MATRIX = re.compile(r"[(\[]?\s*\\begin\{([pbB]?matrix|array)\}(?:\{[^{}]*\})?(.*)\\end\{\1\}\s*[)\]]?", re.DOTALL)
_SYMBOL = re.compile(
    r"(?:\\?[a-zA-Z]+|\\text\s*\{[^{}]*\})(?:_(?:\w|\{[^{}]*\}))?'*(?:\s*\([a-zA-Z](?:,\s*[a-zA-Z])*\))?"
)


@dataclass(frozen=True)
class Leaf:
    """An expression without structure that counts."""

    text: str


@dataclass(frozen=True)
class Listing:
    """Several answers whose order does not matter: ``1, 2``, ``1 and 2``, a set in braces, both signs of a plus-minus."""

    elements: tuple[str, ...]


@dataclass(frozen=True)
class Bracketed:
    """A tuple, vector or interval: order and kind of bracket matter. ``variable`` is what an inequality was about."""

    opening: str
    closing: str
    elements: tuple[str, ...]
    variable: str | None = None


@dataclass(frozen=True)
class Union:
    """A union of intervals or sets, in any order."""

    parts: tuple[str, ...]


@dataclass(frozen=True)
class Matrix:
    """Rows of cells; the kind of bracket does not matter."""

    rows: tuple[tuple[str, ...], ...]


Answer = Leaf | Listing | Bracketed | Union | Matrix


def structure(text: str) -> Answer:
    """Read the outermost structure of a normalised answer; the readers are tried in this order."""
    text = text.strip()
    readers = (_matrix, _membership, _inequality, _union, _list, _both_signs, _enclosed)
    return next((answer for reader in readers if (answer := reader(text)) is not None), Leaf(text))


def list_pieces(text: str) -> list[str]:
    """The elements of a top-level list, or the text alone; "1,000" is one number."""
    if _THOUSANDS.fullmatch(plain(text).split(" ")[0].rstrip("\\%")):
        return [text]
    pieces = split_top(", ".join(split_top(text, _JOINER)), _COMMA)
    if any(not piece for piece in pieces):
        pieces = [piece for piece in pieces if piece]
    return pieces or [text]


def is_symbol(text: str) -> bool:
    """Whether the text is one name that an answer may be assigned to: x, f(x), a_n, \\theta, \\text{Area}."""
    return _SYMBOL.fullmatch(text.strip()) is not None and not text.strip().startswith(("\\frac", "\\sqrt", "\\pi"))


def without_thousands(text: str) -> str:
    """The text with the commas of a number like 1,000 removed."""
    return _THOUSANDS.sub(lambda match: match.group().replace(",", ""), text) if _THOUSANDS.match(text) else text


def _enclosed(text: str) -> Answer | None:
    """What stands in one pair of brackets around the whole text."""
    for opening, closing in (("\\{", "\\}"), ("\\langle", "\\rangle")):
        if text.startswith(opening) and text.endswith(closing) and matching_end(text) == len(text) - 1:
            inner = text[len(opening) : -len(closing)].strip()
            if opening == "\\langle":
                return Bracketed("<", ">", tuple(split_top(inner, _COMMA)))
            if re.search(r"\\mid(?![a-zA-Z])|[|:]", inner):
                return None
            return Listing(tuple(split_top(inner, _COMMA))) if inner else None
    if text[:1] in {"(", "["} and text[-1:] in {")", "]"} and matching_end(text) == len(text) - 1:
        elements = split_top(text[1:-1], _COMMA)
        if len(elements) > 1:
            return Bracketed(text[0], text[-1], tuple(elements))
        if text[0] == "(" and text[-1] == ")":
            return structure(text[1:-1])
    return None


def _matrix(text: str) -> Matrix | None:
    match = _MATRIX.fullmatch(text)
    if match is None or "\\begin" in match.group(2):
        return None
    rows = [row.strip() for row in re.split(r"\\\\(?:\[[^\]]*\])?", match.group(2))]
    while rows and not rows[-1]:
        rows.pop()
    return Matrix(tuple(tuple(cell.strip() for cell in row.split("&")) for row in rows))


def _inequality(text: str) -> Bracketed | None:
    """An inequality in one variable as the interval that it says: x > 5 is (5, infinity)."""
    parts = split_top(text, _COMPARISON)
    signs = [match.strip() for match in _COMPARISON.findall(text)]
    if len(parts) not in {2, 3} or len(signs) != len(parts) - 1 or "=" in text:
        return None
    upward = [sign in {"<", "\\le"} for sign in signs]
    closed = [sign.startswith("\\") for sign in signs]
    if len(set(upward)) > 1:
        return None
    if not upward[0]:
        parts, closed = parts[::-1], closed[::-1]
    if len(parts) == 3 and is_symbol(parts[1]):
        return _interval(parts[0], closed[0], parts[2], closed[1], parts[1])
    if len(parts) == 2 and is_symbol(parts[0]):
        return _interval("-\\infty", False, parts[1], closed[0], parts[0])
    if len(parts) == 2 and is_symbol(parts[1]):
        return _interval(parts[0], closed[0], "\\infty", False, parts[1])
    return None


def _interval(low: str, low_closed: bool, high: str, high_closed: bool, variable: str) -> Bracketed:
    return Bracketed("[" if low_closed else "(", "]" if high_closed else ")", (low, high), variable.strip())


def _membership(text: str) -> Answer | None:
    r"""What x is said to be in: ``x \in [1, 2]``."""
    sides = split_top(text, _IN)
    if len(sides) != 2 or not is_symbol(sides[0]):
        return None
    answer = structure(sides[1])
    if isinstance(answer, Bracketed):
        return Bracketed(answer.opening, answer.closing, answer.elements, sides[0])
    return answer


def _union(text: str) -> Union | None:
    parts = split_top(text, _CUP)
    return Union(tuple(parts)) if len(parts) > 1 else None


def _list(text: str) -> Listing | None:
    pieces = list_pieces(text)
    return Listing(tuple(pieces)) if len(pieces) > 1 else None


def _both_signs(text: str) -> Listing | None:
    r"""Both readings of a single \pm."""
    pieces = re.split(r"\\(?:pm|mp)(?![a-zA-Z])", text)
    if len(pieces) != 2:
        return None
    return Listing((f"{pieces[0]}+{pieces[1]}".strip().lstrip("+"), f"{pieces[0]}-{pieces[1]}".strip()))
