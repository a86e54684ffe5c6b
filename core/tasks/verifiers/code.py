"""Grader for programs: the item's tests, run in a sandbox, judge and candidate in different processes.

``humaneval`` and ``assert`` items: the tests run in the judge's process (:mod:`core.tasks.sandboxed.judge`) and reach the
program only through stand-ins that send inputs and get plain data back, so a program can neither see what is expected nor
touch the comparison. ``stdio`` and ``livecodebench`` items: a fresh process for each test, whose output is compared here
(:mod:`.code_output`). Where the sandbox is missing nothing is judged (infra_error). Model text is never run in this process.
"""

import ast
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from core.syntax import syntax_tree
from core.tasks import sandbox
from core.tasks.items import Item
from core.tasks.sandbox import Isolation, Limits, SandboxError
from core.tasks.verifiers.code_text import continuation, program
from core.tasks.verifiers.verdict import Judgement, Outcome

ITEM_WALL_S = 330.0  # what the pool allows; every way through this module ends earlier by itself
_CLOSING_S = 2.0  # between the end of the socket and the end of the process
_MAX_SHOWN = 8000
_MAX_PROGRAM = 200_000


def version() -> str:
    """Version with the isolation level and the Python that runs the programs; raises :class:`SandboxError`."""
    return f"code/1+{sandbox.probe()}+python{sys.version_info.major}.{sys.version_info.minor}.{sys.version_info.micro}"


def warm_up() -> None:
    """Try the sandbox and start the judge's process; raises :class:`SandboxError` where programs cannot be run apart."""
    sandbox.probe()


def grade(item: Item, text: str) -> Judgement:
    """Judge a completion by ``item.tests``."""
    tests = item.tests or {}
    try:
        level = sandbox.probe()
    except SandboxError as problem:
        return Judgement(Outcome.INFRA_ERROR, f"no sandbox: {problem}")
    kind = tests.get("type")
    code = continuation(text, item.prompt, tests["entry_point"]) if kind == "humaneval" else program(text)
    if code is None:
        return Judgement(Outcome.NO_ANSWER, "no fenced block, and the text is no program")
    shown = code[:_MAX_SHOWN]
    if len(code) > _MAX_PROGRAM:
        return Judgement(Outcome.WRONG, f"the program is longer than {_MAX_PROGRAM} characters", shown)
    if (fault := _syntax_fault(code)) is not None:
        return Judgement(Outcome.WRONG, fault, shown)
    limits = Limits(cpu_s=tests.get("cpu_s", Limits.cpu_s))
    try:
        if kind in {"humaneval", "assert"}:
            judgement = _by_assertions(item, tests, code, level, limits)
        else:
            from core.tasks.verifiers.code_output import by_output

            judgement = by_output(tests, code, level, limits)
    except SandboxError as problem:
        return Judgement(Outcome.INFRA_ERROR, f"no sandbox: {problem}")
    return replace(judgement, extracted=shown)


def _syntax_fault(code: str) -> str | None:
    try:
        compile(code, "program.py", "exec", dont_inherit=True)
    except SyntaxError as problem:
        return f"SyntaxError: {problem.msg} in line {problem.lineno}"[:200]
    except (ValueError, RecursionError, MemoryError, OverflowError) as problem:
        return f"it cannot be compiled: {type(problem).__name__}"
    return None


def _by_assertions(item: Item, tests: Mapping[str, Any], code: str, level: Isolation, limits: Limits) -> Judgement:
    job: dict[str, Any] = {"kind": tests["type"], "cpu_s": limits.cpu_s}
    if tests["type"] == "humaneval":
        job |= {"prompt": item.prompt, "test": tests["test"], "entry_point": tests["entry_point"]}
    else:
        job |= {"setup": tests.get("setup", ""), "test_list": list(tests["test_list"])}
    deadline = time.monotonic() + limits.wall_s
    with sandbox.memory_file(sandbox.program_file(code, _imports(job.get("setup", "")))) as source:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            numbers = map(str, (limits.cpu_s, limits.memory_mb, limits.file_mb, source.fileno(), theirs.fileno()))
            process = sandbox.start(
                "candidate", ["serve", *numbers], level=level, pass_fds=(source.fileno(), theirs.fileno()),
                stderr=subprocess.DEVNULL,
            )  # fmt: skip
            theirs.close()
            result: dict[str, str] | None = None
            try:
                result = _living_judge(level).run(job, ours.fileno(), deadline)
            finally:
                ours.close()
                # Only an end of its own is worth a moment: its status says whether the CPU limit was the cause.
                grace = _CLOSING_S if result is not None and result["result"] == "ended" else 0.0
                ended = sandbox.wait(process, time.monotonic() + grace)
    return _judgement(result, ended.out_of_time, limits)


def _imports(setup: str) -> str:
    """The import statements of an item's setup: the program may rely on them, and they say nothing of what is expected."""
    try:
        statements = syntax_tree(setup).body
    except SyntaxError:
        return ""  # the judge will say so
    return "\n".join(ast.unparse(one) for one in statements if isinstance(one, ast.Import | ast.ImportFrom))


def _judgement(result: Mapping[str, str], out_of_time: bool, limits: Limits) -> Judgement:
    reason = result["reason"]
    if result["result"] == "ended" and out_of_time:
        return Judgement(Outcome.TIMEOUT, f"the program used more than {limits.cpu_s} s of CPU time")
    if result["result"] == "empty":
        return Judgement(Outcome.INFRA_ERROR, "the item's tests hold no assertion that was reached")
    if result["result"] == "unjudgeable":
        return Judgement(Outcome.INFRA_ERROR, f"the item's tests cannot be run: {reason}")
    outcomes = {"passed": Outcome.CORRECT, "failed": Outcome.WRONG, "ended": Outcome.WRONG, "late": Outcome.TIMEOUT}
    return Judgement(outcomes.get(result["result"], Outcome.ERROR), reason)


@dataclass
class _Judge:
    """The sandboxed process that runs tests, kept between items: it forks for each job and keeps nothing of it."""

    process: subprocess.Popen[bytes]
    socket: socket.socket

    def run(self, job: Mapping[str, Any], program: int, deadline: float) -> dict[str, str]:
        """Send a job with the socket to the program; at the deadline the judge is killed, with whatever it was doing."""
        with sandbox.memory_file(json.dumps(job).encode()) as file:
            socket.send_fds(self.socket, [b"j"], [file.fileno(), program])
        line = b""
        while not line.endswith(b"\n"):
            self.socket.settimeout(max(0.001, deadline - time.monotonic()))
            try:
                chunk = self.socket.recv(1 << 16)
            except TimeoutError:
                self.close()
                return {"result": "late", "reason": "the tests took too long on the clock"}
            if not chunk:
                self.close()
                return {"result": "died", "reason": "the tests' process ended"}
            line += chunk
        result: dict[str, str] = json.loads(line)
        return result

    def close(self) -> None:
        """Kill it; the next item starts another."""
        _judge.cache_clear()
        self.process.kill()
        self.process.wait()
        self.socket.close()


def _living_judge(level: Isolation) -> _Judge:
    """The judge, started anew if something ended it in the meantime."""
    judge = _judge(level)
    if judge.process.poll() is not None:
        judge.close()
        judge = _judge(level)
    return judge


@cache
def _judge(level: Isolation) -> _Judge:
    ours, theirs = socket.socketpair()
    with theirs:
        process = sandbox.start(
            "judge", [str(theirs.fileno())], level=level, pass_fds=(theirs.fileno(),), processes=True,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
    os.set_inheritable(ours.fileno(), False)
    return _Judge(process, ours)
