"""The command ``grade``: answers in a file, verdicts out, by the graders that training and evaluation use.

It needs no service and no database; grading happens in a killable pool of processes on this machine.
"""

import json
import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from client import words
from client.errors import ClientError
from core.tasks.item_tests import VERIFIERS, verifier_of
from core.tasks.items import Item, ItemError
from core.tasks.pool import Job, VerifierPool
from core.tasks.verifiers import Verdict

_BATCH = 64


def grade(file: str, kind: str, *, boxed_only: bool, workers: int | None, time_limit_s: float, as_json: bool) -> int:
    """Grade every line of a file and print its verdict; the status is 0 whatever the verdicts are."""
    rows = list(_rows(file))
    jobs = [_job(row, kind, boxed_only=boxed_only, where=where) for where, row in rows]
    counts: Counter[str] = Counter()
    agreed = expected = 0
    with VerifierPool(workers=workers or os.cpu_count() or 1, time_limit_s=time_limit_s) as pool:
        for start in range(0, len(jobs), _BATCH):
            batch = jobs[start : start + _BATCH]
            for (_where, row), job, verdict in zip(rows[start:], batch, pool.grade(batch), strict=False):
                counts[verdict.verdict.value] += 1
                if isinstance(row.get("equal"), bool):
                    expected += 1
                    agreed += row["equal"] == (verdict.score == 1)
                _print(job.item.id, verdict, as_json=as_json)
    summary = ", ".join(f"{count} {name}" for name, count in counts.most_common())
    if expected:
        summary += f"; as the file's field equal says in {agreed} of {expected} lines"
    sys.stderr.write(f"{len(jobs)} graded: {summary or 'nothing'}\n")
    return 0


def _rows(file: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """(place, object) of every line that is not blank."""
    name = "standard input" if file == "-" else Path(file).name
    try:
        with nullcontext(sys.stdin) if file == "-" else Path(file).open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    where = f"{name} line {number}"
                    yield where, _object(line, where)
    except (OSError, UnicodeDecodeError) as problem:
        raise ClientError(
            f"{name} cannot be read: {problem}", hint="name a file of JSON lines, or - for standard input"
        ) from None


def _object(line: str, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as problem:
        raise ClientError(f"{where}: not JSON: {problem}", hint="each line is one JSON object") from None
    if not isinstance(row, dict):
        raise ClientError(f"{where}: a {type(row).__name__}", hint="each line is one JSON object")
    return row


def _job(row: dict[str, Any], kind: str, *, boxed_only: bool, where: str) -> Job:
    def text(name: str, default: str | None = None) -> str:
        value = row.get(name, default)
        if not isinstance(value, str):
            raise ClientError(f"{where}: field {name!r} must be a string", param=name, hint=_needed(kind))
        return value

    tests = row.get("tests")
    if kind == "math":
        gold = text("answer" if "answer" in row and "gold" not in row else "gold")
        item = Item(text("id"), text("prompt", ""), gold, kind, meta={"boxed_only": boxed_only})
    else:
        try:
            found = verifier_of(tests, where=where)
        except ItemError as problem:
            raise ClientError(str(problem), param="tests", hint=_needed(kind)) from None
        if found != kind:
            kinds = ", ".join(name for name, verifier in VERIFIERS.items() if verifier == kind)
            raise ClientError(
                f"{where}: these tests are for {found}", param="tests.type", hint=f"{kind} grades {kinds}"
            )
        item = Item(text("id"), text("prompt", ""), None, kind, tests=tests)
    return Job(item, text("prediction"))


def _needed(kind: str) -> str:
    return f"{kind} needs id, prediction and " + ("gold" if kind == "math" else "tests (and prompt where tests use it)")


def _print(identifier: str, verdict: Verdict, *, as_json: bool) -> None:
    if as_json:
        line = {
            "id": identifier,
            "verdict": verdict.verdict.value,
            "score": verdict.score,
            "reason": verdict.reason,
            "extracted": verdict.extracted,
            "verifier": verdict.verifier,
            "version": verdict.version,
            "ms": round(verdict.ms, 3),
            **({"details": dict(verdict.details)} if verdict.details else {}),
        }
        sys.stdout.write(json.dumps(line, ensure_ascii=False) + "\n")
    else:
        extracted = "" if verdict.extracted is None else "  " + " ".join(verdict.extracted.split())[:60]
        sys.stdout.write(f"{identifier:<16} {verdict.verdict.value:<11} {words.plain(verdict.reason + extracted)}\n")
    sys.stdout.flush()
