"""Cosmetics of mathematical text: one spelling for what looks the same, and splitting at the top level of brackets.

It works on strings only and decides nothing about equality. Where a spelling is ambiguous it is left alone.
"""

import re

_UNICODE = {
    "\N{MINUS SIGN}": "-",
    "\N{EN DASH}": "-",
    "\N{MULTIPLICATION SIGN}": r"\times ",
    "\N{MIDDLE DOT}": r"\cdot ",
    "\N{DOT OPERATOR}": r"\cdot ",
    "\N{DIVISION SIGN}": "/",
    "\N{GREEK SMALL LETTER PI}": r"\pi ",
    "\N{INFINITY}": r"\infty ",
    "\N{LESS-THAN OR EQUAL TO}": r"\le ",
    "\N{GREATER-THAN OR EQUAL TO}": r"\ge ",
    "\N{NOT EQUAL TO}": r"\ne ",
    "\N{ALMOST EQUAL TO}": r"\approx ",
    "\N{PLUS-MINUS SIGN}": r"\pm ",
    "\N{DEGREE SIGN}": r"^\circ ",
    "\N{SUPERSCRIPT TWO}": "^{2}",
    "\N{SUPERSCRIPT THREE}": "^{3}",
    "\N{UNION}": r"\cup ",
    "\N{ELEMENT OF}": r"\in ",
    "\N{SQUARE ROOT}": r"\sqrt",
    "\N{VULGAR FRACTION ONE HALF}": r"\frac{1}{2}",
    "\N{HORIZONTAL ELLIPSIS}": r"\ldots ",
    "\N{NO-BREAK SPACE}": " ",
}
_UNICODE_TABLE = str.maketrans(_UNICODE)

_REWRITES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\\\$", ""),
        (r"\$", ""),
        (r"(?<!\\)\\[()\[\]](?![a-zA-Z]*pt)", " "),
        (r"\\(?:left|right|[bB]igg?[lrm]?)(?![a-zA-Z])\s*(?:\.(?!\d))?", ""),
        (r"\\(?:displaystyle|textstyle|limits|quad|qquad)(?![a-zA-Z])", " "),
        (r"(?<=\d)(?:\\,|\\!|,\\!|~)(?=\d{3}(?!\d))", ","),
        (r"(?<!\\)\\!", ""),
        (r"(?<!\\)\\[,;: ]", " "),
        (r"~", " "),
        (r"(?<=\d)\{\s*,\s*\}(?=\d{3}(?!\d))", ""),
        (r"(?<=\d)\{\s*,\s*\}(?=\d)", "."),
        (r"\\[dtc]frac(?![a-zA-Z])", r"\\frac"),
        (r"\\(?:mathrm|rm|operatorname|mathit|mathbf|mathsf|boldsymbol|bm)\s*\{\s*([a-zA-Z])\s*\}", r"\1 "),
        (r"\{\\rm\s+([a-zA-Z])\}", r"\1 "),
        (
            r"\\(?:textbf|textit|textrm|textnormal|texttt|mbox|mathrm|mathbf|mathsf|mathit|operatorname)\s*\{",
            r"\\text{",
        ),
        (r"\\(?:leq|leqslant)(?![a-zA-Z])", r"\\le "),
        (r"\\(?:geq|geqslant)(?![a-zA-Z])", r"\\ge "),
        (r"\\(?:neq|not\s*=)(?![a-zA-Z])", r"\\ne "),
        (r"<=", r"\\le "),
        (r">=", r"\\ge "),
        (r"\\lt(?![a-zA-Z])", "<"),
        (r"\\gt(?![a-zA-Z])", ">"),
        (r"\\(?:approxeq|simeq|thickapprox)(?![a-zA-Z])", r"\\approx "),
        (r"\\lbrace(?![a-zA-Z])", r"\\{"),
        (r"\\rbrace(?![a-zA-Z])", r"\\}"),
        (r"\\(?:dots|cdots|dotsc|dotsb)(?![a-zA-Z])|\.\.\.", r"\\ldots "),
        (r"\*\*", "^"),
        (r"\\ast(?![a-zA-Z])|\*", r"\\cdot "),
        (r"\^\s*\\circ(?![a-zA-Z])|\^\s*\{\s*\\circ\s*\}|\\degrees?(?![a-zA-Z])", r"\\text{ degrees}"),
        (r"\\frac\s*(\d)\s*(\d)", r"\\frac{\1}{\2}"),
        (r"\\frac\s*(\d)\s*\{", r"\\frac{\1}{"),
        (r"(\\frac\s*\{[^{}]*\})\s*(\d)", r"\1{\2}"),
        (r"\\sqrt\s*([0-9a-zA-Z])", r"\\sqrt{\1}"),
        (r"(?<![\\a-zA-Z])sqrt\s*\(([^()]*)\)", r"\\sqrt{\1}"),
        (r"(?<![\\a-zA-Z])pi(?![a-zA-Z])", r"\\pi "),
        (r"(?<![\\a-zA-Z])(?:infinity|infty|inf)(?![a-zA-Z])", r"\\infty "),
        (r"\s+", " "),
    )
)

_OPENING = {"(": 1, "[": 1, "{": 1}
_CLOSING = {")": -1, "]": -1, "}": -1}


def normalise(text: str) -> str:
    """Return the text in one spelling; it keeps meaning and order, and drops display commands and outer punctuation."""
    text = text.translate(_UNICODE_TABLE)
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    return _unwrapped(text.strip().rstrip(".,;:").strip())


def squashed(text: str) -> str:
    """The text without white space, braces around single characters and unwrapped \\text: for literal comparison."""
    text = re.sub(r"\\text\s*\{([^{}]*)\}", r"\1", text)
    text = re.sub(r"(?<=\d)\s+(?=\d)", "\0", text.strip())  # "2 3" is not 23
    text = re.sub(r"\s+", "", text)
    return re.sub(r"(?<=[_^])\{(\w)\}", r"\1", text)


def plain(text: str) -> str:
    """The text with every ``\\text{...}`` replaced by its content."""
    return re.sub(r"\\text\s*\{([^{}]*)\}", r"\1", text).strip()


def split_top(text: str, separator: re.Pattern[str]) -> list[str]:
    """Split at matches of the separator outside all brackets, braces and environments; pieces are stripped."""
    pieces: list[str] = []
    depth = start = position = 0
    while position < len(text):
        if depth == 0 and (match := separator.match(text, position)) is not None and match.end() > position:
            pieces.append(text[start:position])
            start = position = match.end()
            continue
        step, change = _step(text, position)
        depth = max(0, depth + change)
        position += step
    pieces.append(text[start:])
    return [piece.strip() for piece in pieces]


def matching_end(text: str) -> int | None:
    """Index of the bracket that closes the one at the start of the text; half-open intervals match too."""
    depth = position = 0
    while position < len(text):
        step, change = _step(text, position)
        depth += change
        if depth == 0:
            return position + step - 1
        position += step
    return None


def _step(text: str, position: int) -> tuple[int, int]:
    """(characters to advance, change of depth) at one position."""
    character = text[position]
    if character == "\\":
        command = re.compile(r"\\(?:begin|end|langle|rangle|[a-zA-Z]+|.)", re.DOTALL).match(text, position)
        name = command.group() if command else "\\"
        change = {"\\begin": 1, "\\end": -1, "\\{": 1, "\\}": -1, "\\langle": 1, "\\rangle": -1}.get(name, 0)
        return len(name), change
    return 1, _OPENING.get(character, 0) + _CLOSING.get(character, 0)


def _unwrapped(text: str) -> str:
    """Drop braces or a \\text{} around the whole text."""
    while text:
        inner = text[6:] if text.startswith("\\text{") else text[1:] if text.startswith("{") else None
        if inner is None or matching_end("{" + inner) != len(inner):
            return text
        text = inner[:-1].strip()
    return text
