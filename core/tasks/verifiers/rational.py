"""Exact values of plain arithmetic written in LaTeX or ASCII: the fast and certain path of the math grader.

A small recursive-descent parser over Python's ``Fraction``. It knows numbers, + - * / ^, fractions, mixed numbers,
factorials and brackets, and nothing else: no variables, roots or constants. Sizes are bounded, so it always ends quickly;
whatever is beyond it is ``None``, which means "not for me", never "wrong".
"""

import math
import re
from dataclasses import dataclass
from fractions import Fraction

_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+(?:\.\d+)?(?:[eE][+-]?\d{1,4})?|\.\d+)|(?P<op>\\frac|\\cdot|\\times|\\div|\*\*|[-+*/^!(){}]))"
)
_MAX_BITS = 1 << 16
_MAX_FACTORIAL = 3000
_MAX_LENGTH = 1000
_MAX_DEPTH = 60


@dataclass(frozen=True)
class Exact:
    """An exact value; ``places`` is the number of decimal places when the text was one decimal number, else None."""

    value: Fraction
    places: int | None = None


class _BeyondError(Exception):
    """The text is not plain arithmetic, or too large for this parser."""


def exact(text: str) -> Exact | None:
    """Return the exact value of the text, or None when it is not plain arithmetic within the bounds."""
    stripped = text.strip()
    if not stripped or len(stripped) > _MAX_LENGTH:
        return None
    try:
        parser = _Parser(_pieces(stripped))
        value = parser.sum()
        parser.end()
    except (_BeyondError, ZeroDivisionError, RecursionError):
        return None
    decimal = re.fullmatch(r"[+-]?\s*\d*\.(\d+)", stripped)
    return Exact(value, len(decimal.group(1)) if decimal else None)


def same_value(left: Exact, right: Exact, tolerance: Fraction = Fraction(1, 10**6)) -> bool:
    """Exact equality; a decimal may also be a rounding of the other value.

    A rounding is allowed a relative difference of ``tolerance`` and at most one unit in its own last place, so 0.333333 is
    1/3 but 1234567.0 is not 1234568.0. Whole numbers and fractions never get a tolerance.
    """
    if left.value == right.value:
        return True
    places = [one.places for one in (left, right) if one.places is not None]
    if not places:
        return False
    difference = abs(left.value - right.value)
    larger = max(abs(left.value), abs(right.value))
    return difference <= tolerance * larger and difference < Fraction(1, 10 ** min(places))


def _pieces(text: str) -> list[str]:
    pieces: list[str] = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            if text[position:].isspace():
                break
            raise _BeyondError
        pieces.append(match.group("number") or match.group("op"))
        position = match.end()
    return pieces


class _Parser:
    """sum := product (+|- product)*; product := signed (*|/ signed | bracket)*; power := atom! (^ signed)?"""

    def __init__(self, pieces: list[str]) -> None:
        self._pieces = pieces
        self._position = 0
        self._depth = 0

    def end(self) -> None:
        if self._position != len(self._pieces):
            raise _BeyondError

    def sum(self) -> Fraction:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise _BeyondError
        value = self._product()
        while (piece := self._peek()) in {"+", "-"}:
            self._position += 1
            term = self._product()
            value = _bounded(value + term if piece == "+" else value - term)
        self._depth -= 1
        return value

    def _product(self) -> Fraction:
        value = self._signed()
        while (piece := self._peek()) is not None:
            if piece in {"*", "\\cdot", "\\times"}:
                self._position += 1
                value *= self._signed()
            elif piece in {"/", "\\div"}:
                self._position += 1
                value /= self._signed()
            elif piece == "(":
                value *= self._power()
            else:
                break
            value = _bounded(value)
        return value

    def _signed(self) -> Fraction:
        sign = 1
        while (piece := self._peek()) in {"+", "-"}:
            self._position += 1
            sign = -sign if piece == "-" else sign
        return sign * self._power()

    def _power(self) -> Fraction:
        base = self._atom()
        while self._peek() == "!":
            self._position += 1
            if base.denominator != 1 or not 0 <= base <= _MAX_FACTORIAL:
                raise _BeyondError
            base = Fraction(math.factorial(int(base)))
        if self._peek() in {"^", "**"}:
            self._position += 1
            return _raised(base, self._signed())
        return base

    def _atom(self) -> Fraction:
        piece = self._next()
        if piece == "\\frac":
            top = self._group("{", "}")
            return _bounded(top / self._group("{", "}"))
        if piece in {"(", "{"}:
            self._position -= 1
            return self._group(piece, ")" if piece == "(" else "}")
        if piece.isdigit():
            return _bounded(Fraction(piece) + self._mixed_part())
        if _is_number(piece):
            return _bounded(Fraction(piece))
        raise _BeyondError

    def _mixed_part(self) -> Fraction:
        """The proper fraction right behind a whole number ("1 1/2", "1\\frac{1}{2}"), which adds; 0 where there is none."""
        part = Fraction(0)
        match self._pieces[self._position : self._position + 3]:
            case ["\\frac", *_]:
                part = self._atom()
            case [top, "/", bottom] if top.isdigit() and bottom.isdigit():
                self._position += 3
                part = Fraction(int(top), int(bottom))
        if not 0 <= part < 1:
            raise _BeyondError
        return part

    def _group(self, opening: str, closing: str) -> Fraction:
        if self._next() != opening:
            raise _BeyondError
        value = self.sum()
        if self._next() != closing:
            raise _BeyondError
        return value

    def _peek(self) -> str | None:
        return self._pieces[self._position] if self._position < len(self._pieces) else None

    def _next(self) -> str:
        piece = self._peek()
        if piece is None:
            raise _BeyondError
        self._position += 1
        return piece


def _is_number(piece: str) -> bool:
    return piece[0].isdigit() or piece[0] == "."


def _raised(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1:
        raise _BeyondError
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    if abs(exponent) * bits > _MAX_BITS:
        raise _BeyondError
    return base ** int(exponent)


def _bounded(value: Fraction) -> Fraction:
    if value.numerator.bit_length() > _MAX_BITS or value.denominator.bit_length() > _MAX_BITS:
        raise _BeyondError
    return value
