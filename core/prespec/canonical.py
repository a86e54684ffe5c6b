"""Canonical bytes of a document and their hash.

Unicode is brought to NFC, duplicate keys are refused, decimals must be strings, and the rest is RFC 8785. Binary floats are
refused because two programs need not print them alike; whole numbers must be exact in every JSON reader (|n| < 2^53).
"""

import hashlib
import json
import math
import unicodedata
from collections.abc import Mapping
from typing import Any

import rfc8785

MAX_INTEGER = 2**53 - 1


class CanonicalError(ValueError):
    """A document that has no canonical form. ``param`` is the path of the offending value, such as ``sizes.items``."""

    def __init__(self, param: str, message: str, hint: str = "") -> None:
        super().__init__(f"{param or 'document'}: {message}" + (f" {hint}" if hint else ""))
        self.param = param
        self.message = message
        self.hint = hint


def parse_document(text: str | bytes) -> Any:
    """Parse JSON strictly: duplicate keys, fractions, exponents, NaN and infinities are refused."""
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_float=_no_float, parse_constant=_no_float)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise CanonicalError("", f"not JSON: {error}") from error


def canonical_bytes(document: Any) -> bytes:
    """Return the canonical bytes. Errors: :class:`CanonicalError` with the path of the value."""
    return rfc8785.dumps(_normal(document, ""))


def tagged_hash(tag: str, data: bytes) -> str:
    """Return SHA-256 of ``tag``, a newline and ``data`` in hex; tags keep hashes of different things apart."""
    return hashlib.sha256(tag.encode() + b"\n" + data).hexdigest()


def decimals_as_strings(value: Any) -> Any:
    """Return ``value`` with every float replaced by its shortest decimal that reads back the same, as a string."""
    if isinstance(value, float):
        if not math.isfinite(value):
            raise CanonicalError("", f"{value} is not a finite number.")
        return repr(value)
    if isinstance(value, Mapping):
        return {key: decimals_as_strings(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [decimals_as_strings(item) for item in value]
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise CanonicalError(key, "this key occurs twice.", "Give each key once.")
        result[key] = value
    return result


def _no_float(text: str) -> Any:
    raise CanonicalError("", f"the number {text} is a decimal.", f'Write decimals as strings: "{text}".')


def _normal(value: Any, path: str) -> Any:
    match value:
        case None | bool():
            return value
        case int():
            if abs(value) > MAX_INTEGER:
                raise CanonicalError(path, f"{value} is beyond 2^53.", "Write it as a string.")
            return int(value)
        case float():
            raise CanonicalError(path, f"{value!r} is a binary float.", f'Write decimals as strings: "{value!r}".')
        case str():
            return _nfc(value, path)
        case list() | tuple():
            return [_normal(item, f"{path}[{index}]") for index, item in enumerate(value)]
        case Mapping():
            return _normal_object(value, path)
    raise CanonicalError(path, f"{type(value).__name__} is not a JSON value.")


def _normal_object(value: Mapping[Any, Any], path: str) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, item in value.items():
        if not isinstance(key, str):
            raise CanonicalError(path, f"the key {key!r} is not a string.")
        inner = f"{path}.{key}" if path else key
        normal_key = _nfc(key, inner)
        if normal_key in result:
            raise CanonicalError(inner, "this key occurs twice after Unicode normalisation.")
        result[normal_key] = _normal(item, inner)
    return result


def _nfc(text: str, path: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise CanonicalError(path, "the text holds a lone surrogate.") from error
    return unicodedata.normalize("NFC", text)
