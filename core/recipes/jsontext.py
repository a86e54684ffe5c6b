"""Strict reading of JSON: every fault that Python's reader lets pass is named with its place.

Refused: duplicate keys at any depth, NaN and Infinity, numbers that overflow, integers that no JSON reader holds exactly,
deep nesting, very long texts, U+0000 and lone surrogates (neither can be stored and hashed everywhere). Values are not
checked against any schema here.
"""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from core.recipes.errors import Problem, RecipeError

MAX_BYTES = 1 << 20
MAX_DEPTH = 16
MAX_STRING = 32_768
MAX_KEY = 200
MAX_INTEGER = 2**53 - 1

_NUMBER_HINT = "JSON numbers are finite; leave the field out for its default or write null where null is allowed"


class _Pairs(list[tuple[str, Any]]):
    """An object as it was written: its pairs in order, duplicates included."""


@dataclass(frozen=True)
class _Bad:
    """A literal that is not JSON, kept until its place is known."""

    text: str


def read_object(raw: str | bytes | Mapping[str, Any]) -> dict[str, Any]:
    """Return the object that ``raw`` holds as plain dicts, lists and scalars; raises `RecipeError` with every fault."""
    tree = raw if isinstance(raw, Mapping) else _loads(raw)
    if not isinstance(tree, _Pairs | Mapping):
        raise RecipeError("", "a recipe is a JSON object", 'write {"kind": "train", ...}')
    problems: list[Problem] = []
    plain = _plain(tree, (), problems)
    if problems:
        raise RecipeError.of(problems)
    assert isinstance(plain, dict)
    return plain


def _loads(raw: str | bytes) -> Any:
    if len(raw) > MAX_BYTES:
        raise RecipeError("", f"the recipe is {len(raw)} bytes long", f"at most {MAX_BYTES} bytes are read")
    try:
        text = raw.decode("utf-8") if isinstance(raw, bytes) else raw
        return json.loads(text, object_pairs_hook=_Pairs, parse_constant=_Bad, parse_int=_integer)
    except UnicodeDecodeError as error:
        raise RecipeError("", f"the recipe is not UTF-8 (byte {error.start})", "send JSON in UTF-8") from None
    except json.JSONDecodeError as error:
        place = f"line {error.lineno} column {error.colno}"
        raise RecipeError("", f"the recipe is not JSON: {error.msg} at {place}", "mend the text there") from None
    except RecursionError:
        raise RecipeError("", "the recipe is nested too deeply", f"at most {MAX_DEPTH} levels are read") from None


def _integer(digits: str) -> int | _Bad:
    # Python refuses to convert thousands of digits; the length alone already decides.
    return int(digits) if len(digits) <= 20 else _Bad(digits[:17] + "...")


def _plain(value: Any, path: tuple[str, ...], problems: list[Problem]) -> Any:
    """Copy ``value`` into plain containers, adding a `Problem` for every fault at its dotted place."""
    if len(path) > MAX_DEPTH:
        problems.append(Problem(_dotted(path[:MAX_DEPTH]), "nested too deeply", f"at most {MAX_DEPTH} levels"))
        return None
    if isinstance(value, _Pairs | Mapping):
        return _plain_object(value, path, problems)
    if isinstance(value, list | tuple):
        return [_plain(item, (*path, str(index)), problems) for index, item in enumerate(value)]
    fault = _scalar_fault(value)
    if fault is not None:
        problems.append(Problem(_dotted(path), *fault))
    return value


def _plain_object(value: _Pairs | Mapping[str, Any], path: tuple[str, ...], problems: list[Problem]) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    for key, item in _pairs(value):
        fault = _key_fault(key)
        if fault is not None:
            problems.append(Problem(_dotted(path), f"bad key: {fault[0]}", fault[1]))
            continue
        place = (*path, key)
        if key in plain:
            problems.append(Problem(_dotted(place), "the key is written twice", "keep one of the two"))
        plain[key] = _plain(item, place, problems)
    return plain


def _pairs(value: _Pairs | Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    return iter(value.items()) if isinstance(value, Mapping) else iter(value)


def _key_fault(key: Any) -> tuple[str, str] | None:
    if not isinstance(key, str):
        return "keys are texts", "write the key in quotes"
    if len(key) > MAX_KEY:
        return f"a key is {len(key)} characters long", f"at most {MAX_KEY} characters"
    return _string_fault(key)


def _scalar_fault(value: Any) -> tuple[str, str] | None:
    fault: tuple[str, str] | None = None
    match value:
        case None | bool():
            pass
        case str():
            fault = _string_fault(value)
        case int():
            if abs(value) > MAX_INTEGER:
                fault = (
                    f"the integer {value} is too large",
                    f"at most {MAX_INTEGER} (2^53 - 1), so that JSON holds it exactly",
                )
        case float():
            if not math.isfinite(value):
                fault = (f"the number is {value}, which is not finite", _NUMBER_HINT)
        case _Bad(text):
            fault = (f"{text} is not a JSON number that can be held", _NUMBER_HINT)
        case _:
            fault = (
                f"a {type(value).__name__} is not a JSON value",
                "use texts, numbers, true, false, null, lists, objects",
            )
    return fault


def _string_fault(text: str) -> tuple[str, str] | None:
    if len(text) > MAX_STRING:
        return f"the text is {len(text)} characters long", f"at most {MAX_STRING} characters"
    if "\x00" in text:
        return "the text contains U+0000", "remove the NUL character"
    if any("\ud800" <= char <= "\udfff" for char in text):
        return "the text contains a lone surrogate", "write the character as one UTF-8 character or a full \\u pair"
    return None


def _dotted(path: tuple[str, ...]) -> str:
    return ".".join(path)
