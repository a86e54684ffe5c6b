"""LiveCodeBench's release format: one JSON object a line, private tests packed as base64 of zlib of a pickled JSON string.

The pickle is read as data: its instructions are walked and only those that build one string are allowed, so nothing in a
release file can run. Packed tests stay packed in the item (they can be a hundred times larger) until they are needed.
"""

import base64
import binascii
import json
import pickletools
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from core.tasks.items import Item, ItemError

_MAX_TESTS_BYTES = 256 << 20
_ROW_FIELDS = ("question_content", "question_id", "public_test_cases", "private_test_cases", "metadata")
_STRING_OPS = {"BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "UNICODE"}
_HARMLESS_OPS = {"PROTO", "FRAME", "MEMOIZE", "BINPUT", "LONG_BINPUT", "PUT", "STOP"}


@dataclass(frozen=True)
class Case:
    """One test: the input, the expected output, and whether they are a program's streams or a function's values."""

    input: str
    output: str
    kind: Literal["stdin", "functional"]


def is_release_row(raw: Mapping[str, Any]) -> bool:
    """Whether a line of a file is a row of a release rather than of this project's own schema."""
    return all(field in raw for field in _ROW_FIELDS)


def item(raw: Mapping[str, Any], *, where: str) -> Item:
    """The item of one row; raises :class:`ItemError` naming ``where`` and the field.

    The prompt is the question and, where there is one, the starter code in a fenced block; nothing else is added.
    """
    for field in ("question_content", "question_id"):
        if not isinstance(raw[field], str) or not raw[field].strip():
            raise ItemError(f"{where}: field {field!r} must be a non-empty string")
    metadata = _json_field(raw, "metadata", where) if raw["metadata"] else {}
    starter = raw.get("starter_code") or ""
    prompt = raw["question_content"] + (f"\n\n```python\n{starter.rstrip()}\n```" if starter.strip() else "")
    tests = {
        "type": "livecodebench",
        "public": raw["public_test_cases"],
        "private": raw["private_test_cases"],
        "function": metadata.get("func_name") if isinstance(metadata, dict) else None,
    }
    try:
        found = cases(tests)
    except ItemError as problem:
        raise ItemError(f"{where}: {problem}") from None
    if any(case.kind == "functional" for case in found) and not tests["function"]:
        raise ItemError(f"{where}: field 'metadata.func_name' must name the function that its functional tests call")
    meta = {
        name: raw[name]
        for name in ("platform", "contest_id", "contest_date", "difficulty", "question_title")
        if name in raw
    }
    return Item(raw["question_id"], prompt, None, "code", "livecodebench", tests, meta)


def cases(tests: Mapping[str, Any]) -> list[Case]:
    """Public and private tests in order; raises :class:`ItemError` where they cannot be read or there are none."""
    found = [_case(one, name) for name in ("public", "private") for one in _unpacked(tests[name], f"{name}_test_cases")]
    if not found:
        raise ItemError("fields 'public_test_cases' and 'private_test_cases' hold no test")
    return found


def _unpacked(packed: Any, field: str) -> list[Any]:
    if isinstance(packed, str) and packed.strip():
        try:
            packed = json.loads(packed)
        except ValueError:
            packed = json.loads(_pickled_string(packed, field))
    if packed in (None, ""):
        return []
    if not isinstance(packed, list):
        raise ItemError(f"field {field!r} must hold a list of tests")
    return packed


def _pickled_string(packed: str, field: str) -> str:
    """The one string of a base64, zlib, pickle package, without executing the pickle."""
    try:
        inflater = zlib.decompressobj()
        data = inflater.decompress(base64.b64decode(packed, validate=True), _MAX_TESTS_BYTES)
        if inflater.unconsumed_tail:
            raise ItemError(f"field {field!r} is larger than {_MAX_TESTS_BYTES >> 20} MiB unpacked")
        found: list[str] = []
        for operation, argument, _position in pickletools.genops(data):
            if operation.name in _STRING_OPS:
                found.append(str(argument))
            elif operation.name not in _HARMLESS_OPS:
                raise ItemError(f"field {field!r}: the pickle does more than hold a string ({operation.name})")
    except (binascii.Error, zlib.error, ValueError) as problem:
        raise ItemError(f"field {field!r} is neither JSON nor a packed list of tests: {problem}") from None
    if len(found) != 1:
        raise ItemError(f"field {field!r}: the pickle holds {len(found)} strings instead of one")
    return found[0]


def _case(raw: Any, name: str) -> Case:
    match raw:
        case {"input": str(given), "output": str(wanted), "testtype": "stdin" | "functional" as kind}:
            return Case(given, wanted, kind)
    raise ItemError(
        f"field '{name}_test_cases': a test needs the texts input and output, and testtype stdin or functional"
    )


def _json_field(raw: Mapping[str, Any], field: str, where: str) -> Any:
    value = raw[field]
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError as problem:
        raise ItemError(f"{where}: field {field!r} is not JSON: {problem}") from None
