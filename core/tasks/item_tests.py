"""The ``tests`` object of an item: which kinds there are, who grades each, and what its fields must hold.

Checked when items are read, so that a test that nobody could run is refused with its place instead of masking samples later.
Nothing is run here.
"""

import ast
from collections.abc import Iterator, Mapping
from typing import Any

from core.syntax import syntax_tree
from core.tasks.items import ItemError

VERIFIERS = {
    "humaneval": "code", "assert": "code", "stdio": "code", "livecodebench": "code",
    "ifeval": "instructions", "ifbench": "instructions",
}  # fmt: skip
_MAX_CPU_S = 600
_COMPARE = ("exact", "decimal")


def verifier_of(tests: object, *, where: str) -> str:
    """The verifier of a ``tests`` object; raises :class:`ItemError` naming ``where`` and the first wrong field."""
    kind = tests.get("type") if isinstance(tests, dict) else None
    if not isinstance(tests, dict) or not isinstance(kind, str) or kind not in VERIFIERS:
        raise ItemError(f"{where}: field 'tests.type' must be one of {', '.join(VERIFIERS)}")
    for field, problem in _faults(kind, tests):
        raise ItemError(f"{where}: field {field!r} {problem}")
    return VERIFIERS[kind]


def _faults(kind: str, tests: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if VERIFIERS[kind] == "instructions":
        from core.tasks.verifiers.instructions import faults

        yield from faults(tests)
        return
    cpu_s = tests.get("cpu_s", 30)
    if not isinstance(cpu_s, int) or isinstance(cpu_s, bool) or not 1 <= cpu_s <= _MAX_CPU_S:
        yield "tests.cpu_s", f"must be a whole number of seconds from 1 to {_MAX_CPU_S}"
    if "reference" in tests and not isinstance(tests["reference"], str):
        yield "tests.reference", "must be a program that passes the tests, as a string"
    match kind:
        case "humaneval":
            yield from _humaneval(tests)
        case "assert":
            yield from _asserts(tests)
        case "stdio":
            yield from _streams(tests)


def _humaneval(tests: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if not isinstance(tests.get("entry_point"), str) or not tests["entry_point"].isidentifier():
        yield "tests.entry_point", "must be the name of the function to write"
    if not isinstance(tests.get("test"), str) or not _asserts_something(tests["test"]):
        yield "tests.test", "must be Python with a function check(candidate) that asserts something"


def _asserts(tests: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if not isinstance(tests.get("setup", ""), str) or _parsed(tests.get("setup", "")) is None:
        yield "tests.setup", "must be Python that runs before the tests"
    lines = tests.get("test_list")
    if not isinstance(lines, list) or not lines:
        yield "tests.test_list", "must be a list of at least one Python assertion"
        return
    for place, line in enumerate(lines):
        if not isinstance(line, str) or not _asserts_something(line):
            yield f"tests.test_list[{place}]", "must be Python that asserts something"


def _streams(tests: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    given, wanted = tests.get("inputs"), tests.get("outputs")
    for name, texts in (("inputs", given), ("outputs", wanted)):
        if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
            yield f"tests.{name}", "must be a list of at least one text"
    if isinstance(given, list) and isinstance(wanted, list) and len(given) != len(wanted):
        yield "tests.outputs", f"holds {len(wanted)} texts for {len(given)} inputs; the numbers must be equal"
    if tests.get("compare", "exact") not in _COMPARE:
        yield "tests.compare", f"must be one of {', '.join(_COMPARE)}"


def _asserts_something(text: str) -> bool:
    tree = _parsed(text)
    return tree is not None and any(isinstance(node, ast.Assert) for node in ast.walk(tree))


def _parsed(text: str) -> ast.Module | None:
    try:
        return syntax_tree(text)
    except (SyntaxError, ValueError, RecursionError):
        return None
