"""Equality of two expressions without outer structure, by value, after parsing their LaTeX.

Parsing is math-verify's (its LaTeX grammar only; its plain-expression path calls ``parse_expr`` and is never used), on
wrapped content, first parsed element, no string fallback, no alarms. Comparing is done here, because its numeric check
takes all tiny numbers for zero: two expressions are equal when their difference vanishes, relative to their size, at
several fixed points in 40 digits. It may run for ever on hostile input; the pool's limits are what ends it.
"""

import logging
import re
from functools import lru_cache
from typing import Any

_POINTS = (
    ("1.3717", "0.6181", "2.2361", "0.4343", "1.8393"),
    ("0.2732", "1.9318", "0.7071", "3.1416", "0.5772"),
    ("2.7193", "0.3679", "1.2020", "0.9159", "4.6692"),
    ("-0.5671", "-1.4513", "-0.8346", "-2.5029", "-0.2614"),
    ("-1.7320", "0.8862", "-0.3028", "1.0986", "-2.0713"),
)
_DIGITS = 40
_EXACT_TOLERANCE = "1e-25"
_FLOAT_TOLERANCE = "1e-6"
_MAX_LENGTH = 600
_IDENTIFIER = re.compile(r"\\?[a-zA-Z]+")
_EULER = re.compile(r"(?<![\\a-zA-Z])e(?![a-zA-Z])")


def warm_up() -> None:
    """Import SymPy and the LaTeX grammar, which takes about a second, and parse once to build its tables."""
    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    logging.getLogger("latex2sympy2_extended").setLevel(logging.CRITICAL)
    parse_latex(r"\frac{1}{2}x")


def same_expression(gold: str, answer: str) -> bool:
    """Whether both texts parse and mean the same; anything that cannot be parsed or decided is not the same."""
    if max(len(gold), len(answer)) > _MAX_LENGTH or _case_differs(gold, answer):
        return False
    left, right = parse_latex(gold), parse_latex(answer)
    if left is None or right is None:
        return False
    import sympy

    if isinstance(left, sympy.Eq) and isinstance(right, sympy.Eq):
        return _same_zero_set(left.lhs - left.rhs, right.lhs - right.rhs)
    if isinstance(left, sympy.Expr) and isinstance(right, sympy.Expr):
        return _same_value(left, right)
    return type(left) is type(right) and bool(left == right)


@lru_cache(maxsize=256)
def parse_latex(text: str) -> Any:
    """Return a SymPy object, or None when the text is not mathematics that the grammar knows."""
    from math_verify import LatexExtractionConfig, parse

    parsed = parse(
        "\\boxed{" + text + "}",
        extraction_config=[LatexExtractionConfig(boxed_match_priority=0)],
        fallback_mode="no_fallback",
        parsing_timeout=None,
    )
    return parsed[0] if parsed and not isinstance(parsed[0], str) else None


def _case_differs(gold: str, answer: str) -> bool:
    """The grammar folds the case of names, so a name that differs by case only is caught before it is parsed."""
    gold_names, answer_names = set(_IDENTIFIER.findall(gold)), set(_IDENTIFIER.findall(answer))
    only_gold = {name.casefold() for name in gold_names - answer_names}
    return any(name.casefold() in only_gold for name in answer_names - gold_names)


def _same_value(left: Any, right: Any) -> bool:
    import sympy

    if left == right:
        return True
    left, right = _with_imaginary_unit(left, right)
    symbols = _ordered_symbols(left, right)
    if symbols is None:
        return False
    decimals = left.has(sympy.Float) or right.has(sympy.Float)
    tolerance = sympy.Float(_FLOAT_TOLERANCE if decimals else _EXACT_TOLERANCE)
    agreed = 0
    for point in _POINTS if symbols else _POINTS[:1]:
        values = _at(left, symbols, point), _at(right, symbols, point)
        if values[0] is None and values[1] is None:
            continue
        if values[0] is None or values[1] is None or not _close(values[0], values[1], tolerance):
            return False
        agreed += 1
    return agreed >= (3 if symbols else 1)


def _with_imaginary_unit(left: Any, right: Any) -> tuple[Any, Any]:
    """Where only one side has a symbol i it is no variable of the question but the imaginary unit; the grammar does not say."""
    import sympy

    found = [[symbol for symbol in side.free_symbols if symbol.name == "i"] for side in (left, right)]
    if bool(found[0]) == bool(found[1]):
        return left, right
    left, right = (
        side.subs(dict.fromkeys(symbols, sympy.I)) for side, symbols in zip((left, right), found, strict=True)
    )
    return left, right


def _same_zero_set(left: Any, right: Any) -> bool:
    """Two equations say the same when their sides' differences are proportional by a non-zero constant."""
    import sympy

    symbols = _ordered_symbols(left, right)
    if not symbols:
        return False
    ratios = []
    for point in _POINTS:
        top, bottom = _at(left, symbols, point), _at(right, symbols, point)
        if top is None or bottom is None:
            continue
        if abs(top) == 0 or abs(bottom) == 0:
            return False
        ratios.append(top / bottom)
    decimals = left.has(sympy.Float) or right.has(sympy.Float)
    tolerance = sympy.Float(_FLOAT_TOLERANCE if decimals else _EXACT_TOLERANCE)
    return len(ratios) >= 3 and all(_close(ratios[0], ratio, tolerance) for ratio in ratios[1:])


def _ordered_symbols(left: Any, right: Any) -> list[Any] | None:
    """The symbols by name, or None when the two sides do not have the same ones or more than there are coordinates."""
    names = {symbol.name: symbol for symbol in left.free_symbols | right.free_symbols}
    if {symbol.name for symbol in left.free_symbols} != {symbol.name for symbol in right.free_symbols}:
        return None
    if len(names) > len(_POINTS[0]):
        return None
    return [names[name] for name in sorted(names)]


def _at(expression: Any, symbols: list[Any], point: tuple[str, ...]) -> Any:
    """The value at a point to 40 digits, or None where there is none."""
    import sympy

    chosen = {symbol.name: sympy.Rational(value) for symbol, value in zip(symbols, point, strict=False)}
    places = {symbol: chosen[symbol.name] for symbol in expression.free_symbols}
    value = sympy.N(expression.subs(places).doit(), _DIGITS)
    if not value.is_number or value.has(sympy.nan, sympy.zoo, sympy.oo, -sympy.oo):
        return None
    real, imaginary = value.as_real_imag()
    return None if not (real.is_Float or real == 0) or not (imaginary.is_Float or imaginary == 0) else value


def _close(left: Any, right: Any, tolerance: Any) -> bool:
    larger = max(abs(left), abs(right))
    return bool(larger == 0 or abs(left - right) <= tolerance * larger)
