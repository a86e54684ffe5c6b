"""Programs judged by their output: one fresh process for each test, which is given the input and nothing else.

The rule for text: white space at line ends and blank lines at the end do not count; then lines must have the same tokens.
With ``compare: decimal`` (LiveCodeBench's own rule) tokens that both are decimal numbers may differ in spelling, not in value.
Function results are compared as plain data, a tuple as a list, and ``True`` is not 1. Comparing happens in this process on
text and inert values; the program's process is already gone.
"""

import json
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

from core.tasks import sandbox
from core.tasks.items import ItemError
from core.tasks.livecodebench import Case, cases
from core.tasks.sandbox import Isolation, Limits
from core.tasks.sandboxed.wire import Link, WireError, decode, encode
from core.tasks.verifiers.verdict import Judgement, Outcome

_ITEM_S = 300.0
_CLOSING_S = 2.0
_MAX_DIGITS = 1000


def by_output(tests: Mapping[str, Any], code: str, level: Isolation, limits: Limits) -> Judgement:
    """Run the tests in order up to the first that fails. ``tests`` is of type ``stdio`` or ``livecodebench``."""
    try:
        todo = list(_cases(tests))
    except ItemError as problem:
        return Judgement(Outcome.INFRA_ERROR, f"the item's tests cannot be read: {problem}")
    if not todo:
        return Judgement(Outcome.INFRA_ERROR, "the item has no test")
    deadline = time.monotonic() + _ITEM_S
    decimal = tests["type"] == "livecodebench" or tests.get("compare") == "decimal"
    for number, case in enumerate(todo, start=1):
        where = f"in test {number} of {len(todo)}"
        until = min(deadline, time.monotonic() + limits.wall_s)
        if case.kind == "stdin":
            failed = _stream_test(case, code, level, limits, until, decimal=decimal)
        else:
            failed = _function_test(case, tests["function"], code, level, limits, deadline=until)
        if failed is not None:
            return Judgement(failed.verdict, f"{failed.reason} {where}")
        if time.monotonic() >= deadline and number < len(todo):
            return Judgement(Outcome.TIMEOUT, f"{number} of {len(todo)} tests took the {_ITEM_S:g} s of the item")
    return Judgement(Outcome.CORRECT, f"{len(todo)} tests passed")


def _cases(tests: Mapping[str, Any]) -> Iterator[Case]:
    if tests["type"] == "livecodebench":
        yield from cases(tests)
        return
    for given, wanted in zip(tests["inputs"], tests["outputs"], strict=True):
        yield Case(given, wanted, "stdin")


def same_output(wanted: str, printed: str, *, decimal: bool = False) -> bool:
    """Whether two outputs count as the same; see the module's rule."""
    left, right = _lines(wanted), _lines(printed)
    return len(left) == len(right) and all(
        len(one) == len(other) and all(map(_same_decimal if decimal else str.__eq__, one, other))
        for one, other in zip(left, right, strict=True)
    )


def _lines(text: str) -> list[list[str]]:
    lines = [line.split() for line in text.replace("\r\n", "\n").split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def _same_decimal(left: str, right: str) -> bool:
    if left == right:
        return True
    if max(len(left), len(right)) > _MAX_DIGITS:
        return False
    try:
        one, other = Decimal(left), Decimal(right)
    except InvalidOperation:
        return False
    return one.is_finite() and other.is_finite() and one == other


def _stream_test(
    case: Case, code: str, level: Isolation, limits: Limits, deadline: float, *, decimal: bool
) -> Judgement | None:
    with (
        sandbox.memory_file(sandbox.program_file(code)) as source,
        sandbox.memory_file(case.input.encode()) as given,
        sandbox.memory_file() as printed,
        sandbox.memory_file() as complaint,
    ):
        numbers = map(str, (limits.cpu_s, limits.memory_mb, limits.file_mb, source.fileno()))
        process = sandbox.start(
            "candidate", ["script", *numbers], level=level, stdin=given, stdout=printed, stderr=complaint,
            pass_fds=(source.fileno(),),
        )  # fmt: skip
        ended = sandbox.wait(process, deadline)
        if ended.out_of_time:
            return Judgement(
                Outcome.TIMEOUT, f"more than {limits.cpu_s} s of CPU time or {limits.wall_s:g} s on the clock"
            )
        if ended.status != 0:
            return Judgement(Outcome.WRONG, f"the program ended with status {ended.status}: {_last_line(complaint)}")
        printed.seek(0)
        text = printed.read().decode("utf-8", errors="replace")
    return None if same_output(case.output, text, decimal=decimal) else Judgement(Outcome.WRONG, "another output")


def _last_line(file: Any) -> str:
    file.seek(0)
    lines = file.read().decode("utf-8", errors="replace").strip().splitlines()
    return lines[-1][:200] if lines else "it said nothing"


def _function_test(
    case: Case, function: str, code: str, level: Isolation, limits: Limits, *, deadline: float
) -> Judgement | None:
    try:
        values = [json.loads(line) for line in case.input.split("\n") if line.strip()]
        wanted = json.loads(case.output)
    except ValueError as problem:
        return Judgement(Outcome.INFRA_ERROR, f"the item's test is not JSON ({problem})")
    ours, theirs = socket.socketpair()
    with ours, theirs, sandbox.memory_file(sandbox.program_file(code)) as source:
        numbers = map(str, (limits.cpu_s, limits.memory_mb, limits.file_mb, source.fileno(), theirs.fileno()))
        process = sandbox.start(
            "candidate", ["serve", *numbers], level=level, pass_fds=(source.fileno(), theirs.fileno()),
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        theirs.close()
        link = Link(ours.fileno(), deadline)
        failed, ended_itself = _asked(link, function, values, wanted)
        ours.close()
        ended = sandbox.wait(
            process, min(deadline, time.monotonic() + _CLOSING_S) if ended_itself else time.monotonic()
        )
        if ended_itself and (ended.out_of_time or time.monotonic() >= deadline):
            return Judgement(
                Outcome.TIMEOUT, f"more than {limits.cpu_s} s of CPU time or {limits.wall_s:g} s on the clock"
            )
    return failed


def _asked(link: Link, function: str, values: list[Any], wanted: Any) -> tuple[Judgement | None, bool]:
    """(what is wrong or None, whether the process ended or went silent by itself)."""

    def no_objects(value: Any) -> Any:
        raise WireError(f"a {type(value).__name__} that is no plain data")

    try:
        message = link.receive()
        if message == ["ready"]:
            link.send(["method", function, [encode(value, no_objects) for value in values]])
            message = link.receive()
        match message:
            case ["value", value]:
                same = _same_data(wanted, decode(value, no_objects))
                return (None if same else Judgement(Outcome.WRONG, "another result")), False
            case ["raised", str(kind), str(text)]:
                return Judgement(Outcome.WRONG, f"the program raised {kind[:80]}: {text[:200]}"), False
    except EOFError:
        return Judgement(Outcome.WRONG, "the program ended before it answered"), True
    except WireError as problem:
        return Judgement(Outcome.WRONG, f"the program answered with {problem}"), False
    return Judgement(Outcome.WRONG, "the program answered with no known message"), False


def _same_data(wanted: Any, found: Any) -> bool:
    if isinstance(wanted, bool) or isinstance(found, bool):
        return wanted is found
    if isinstance(wanted, list) and isinstance(found, list | tuple):
        return len(wanted) == len(found) and all(map(_same_data, wanted, found))
    if isinstance(wanted, dict) and isinstance(found, dict):
        return wanted.keys() == found.keys() and all(_same_data(value, found[key]) for key, value in wanted.items())
    return (
        type(wanted) in {str, int, float, type(None)}
        and type(found) in {str, int, float, type(None)}
        and wanted == found
    )
