"""A pool of grading processes that can be killed: memory, CPU and wall-clock limits, one verdict for every answer.

Model text can make a grader loop in C code, exhaust memory or crash. Each worker is a separate process
(:mod:`core.tasks.pool_worker`) that speaks JSON lines over pipes; the parent holds the clock, kills with SIGKILL and starts
a new one. A lost answer is a verdict ``timeout``, ``error`` or ``infra_error`` with its reason, never a silent zero, and
its neighbours are not touched. No signals or alarms are used, so any thread may grade. It is not a security sandbox: the
graders run no code from the answers in their own process; the code grader has a sandbox (:mod:`core.tasks.sandbox`).
"""

import contextlib
import json
import math
import os
import queue
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from core.tasks.items import Item
from core.tasks.verifiers import time_limit
from core.tasks.verifiers.verdict import Outcome, Verdict

_ROOT = Path(__file__).resolve().parents[2]
_STARTUP_LIMIT_S = 120.0
_PASSED_ON = ("DRIFTLINE_CODE_ISOLATION", "NLTK_DATA")  # the operator's settings that graders read
_ANSWERS_PER_PROCESS = 1000  # graders cache parsed expressions; a fresh process keeps memory bounded


@dataclass(frozen=True)
class Job:
    """One completion to grade; ``verifier`` None means the item's own."""

    item: Item
    text: str
    verifier: str | None = None


class VerifierPool:
    """``workers`` grading processes, started when first needed. Use as a context manager or call :meth:`close`.

    ``time_limit_s`` is wall-clock time for one answer, ``memory_mb`` the address space of one worker in MiB.
    """

    def __init__(self, workers: int = 2, time_limit_s: float = 10.0, memory_mb: int = 2048) -> None:
        if workers < 1 or not 0 < time_limit_s < math.inf or memory_mb < 1:
            raise ValueError("workers and memory_mb must be at least 1, and time_limit_s positive and finite")
        self._slots: queue.SimpleQueue[_Slot] = queue.SimpleQueue()
        self._all = [_Slot(time_limit_s, memory_mb) for _ in range(workers)]
        for slot in self._all:
            self._slots.put(slot)
        self._threads = ThreadPoolExecutor(max_workers=workers, thread_name_prefix="grading")
        self._closed = False

    def grade(self, jobs: Sequence[Job]) -> list[Verdict]:
        """Return one verdict per job, in order. May be called from any thread, also from several at once."""
        if self._closed:
            raise RuntimeError("this verifier pool is closed")
        return list(self._threads.map(self._grade_one, jobs))

    def pids(self) -> list[int]:
        """Process ids of the live workers."""
        return [slot.process.pid for slot in self._all if slot.process is not None and slot.process.poll() is None]

    def close(self) -> None:
        """End the workers after the answers in hand; calling it again does nothing."""
        self._closed = True
        self._threads.shutdown(wait=True)
        for slot in self._all:
            slot.stop()

    def __enter__(self) -> "VerifierPool":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _grade_one(self, job: Job) -> Verdict:
        slot = self._slots.get()
        try:
            return slot.grade(job)
        finally:
            self._slots.put(slot)


class _DiedError(Exception):
    """The worker ended; ``signal_number`` is what ended it, or 0 when it left by itself."""

    def __init__(self, returncode: int) -> None:
        super().__init__(f"the grading process ended with status {returncode}")
        self.signal_number = max(0, -returncode)


class _Slot:
    """One worker process, restarted whenever it was killed, died or has served its share."""

    def __init__(self, time_limit_s: float, memory_mb: int) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self._time_limit_s = time_limit_s
        self._memory_mb = memory_mb
        self._versions: dict[str, str] = {}
        self._served = 0
        self._buffer = b""

    def grade(self, job: Job) -> Verdict:
        """Grade one answer; when a worker that had served others breaks, the answer gets one fresh worker."""
        verifier = job.verifier or job.item.verifier
        while True:
            try:
                self._ready(verifier)
            except (OSError, TimeoutError, _DiedError, _LoadFailedError) as problem:
                self.stop()
                reason = f"the grader could not be started: {problem}"
                return Verdict(Outcome.INFRA_ERROR, reason, None, verifier, self._versions.get(verifier, ""))
            fresh = self._served == 0
            self._served += 1
            verdict, broke = self._ask(job, verifier)
            if broke:
                self.stop()
            if fresh or not broke or verdict.verdict is Outcome.TIMEOUT:
                return verdict

    def stop(self) -> None:
        """Kill the worker, if there is one, and collect it."""
        process, self.process = self.process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    def _ask(self, job: Job, verifier: str) -> tuple[Verdict, bool]:
        """Return the verdict and whether the worker is no longer to be trusted."""
        version = self._versions[verifier]
        limit = time_limit(verifier, self._time_limit_s)
        request = {
            "verifier": verifier,
            "item": job.item.as_dict(),
            "text": job.text,
            "memory_mb": self._memory_mb,
            "cpu_s": limit + 1,  # a second line of defence, for when this parent is stopped or gone
        }
        started = time.monotonic()

        def failed(outcome: Outcome, reason: str) -> tuple[Verdict, bool]:
            return Verdict(outcome, reason, None, verifier, version, (time.monotonic() - started) * 1000), True

        try:
            reply = self._exchange(request, started + limit)
            outcome = Outcome(reply["verdict"])
        except TimeoutError:
            return failed(Outcome.TIMEOUT, f"grading took longer than {limit:g} s")
        except _DiedError as death:
            return failed(*self._death(death))
        except (OSError, ValueError, KeyError, TypeError) as problem:
            return failed(Outcome.INFRA_ERROR, f"the grading process gave no usable reply: {problem}")
        details = reply["details"]
        verdict = Verdict(outcome, reply["reason"], reply["extracted"], verifier, version, reply["ms"], details)
        return verdict, bool(reply["out_of_memory"])

    def _death(self, death: _DiedError) -> tuple[Outcome, str]:
        match death.signal_number:
            case signal.SIGXCPU:
                return Outcome.TIMEOUT, "grading used more CPU time than allowed"
            case signal.SIGKILL | signal.SIGTERM:
                return Outcome.INFRA_ERROR, "the grading process was killed from outside"
            case number:
                how = f"by signal {number}" if number else "without a reply"
                return Outcome.ERROR, f"the grading process ended {how} (memory limit {self._memory_mb} MiB)"

    def _ready(self, verifier: str) -> None:
        """Have a live worker with the grader imported."""
        if self._served >= _ANSWERS_PER_PROCESS or (self.process is not None and self.process.poll() is not None):
            self.stop()
        if self.process is None:
            self.process = _start()
            self._versions, self._served, self._buffer = {}, 0, b""
        if verifier not in self._versions:
            reply = self._exchange({"load": verifier}, time.monotonic() + _STARTUP_LIMIT_S)
            if "failed" in reply:
                raise _LoadFailedError(reply["failed"])
            self._versions[verifier] = reply["version"]

    def _exchange(self, request: dict[str, Any], deadline: float) -> dict[str, Any]:
        """Send one line and read one; raises ``TimeoutError`` at the deadline and :class:`_DiedError` at end of file."""
        assert self.process is not None
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        source = self.process.stdin.fileno(), self.process.stdout.fileno()
        try:
            _write(source[0], json.dumps(request).encode() + b"\n", deadline)
            while b"\n" not in self._buffer:
                _wait(source[1], select.POLLIN, deadline)
                chunk = os.read(source[1], 1 << 16)
                if not chunk:
                    raise _DiedError(self.process.wait())
                self._buffer += chunk
        except BrokenPipeError:
            raise _DiedError(self.process.wait()) from None
        line, _, self._buffer = self._buffer.partition(b"\n")
        reply = json.loads(line)
        if not isinstance(reply, dict):
            raise ValueError("not an object")
        return reply


class _LoadFailedError(Exception):
    """The worker runs but its grader cannot be imported."""


def _start() -> subprocess.Popen[bytes]:
    """Start a worker with a small, fixed environment: same hash seed everywhere, one thread, nothing of ours leaks in."""
    environment = {
        "PATH": os.environ.get("PATH", ""),
        "LANG": "C.UTF-8",
        "PYTHONPATH": os.pathsep.join([str(_ROOT), *_inherited_path()]),
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        **{name: os.environ[name] for name in _PASSED_ON if name in os.environ},
    }
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "core.tasks.pool_worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
        bufsize=0,
    )
    assert process.stdin is not None
    os.set_blocking(process.stdin.fileno(), False)
    return process


def _inherited_path() -> Iterator[str]:
    yield from filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))


def _write(descriptor: int, data: bytes, deadline: float) -> None:
    view = memoryview(data)
    while view:
        _wait(descriptor, select.POLLOUT, deadline)
        with contextlib.suppress(BlockingIOError):
            view = view[os.write(descriptor, view) :]


def _wait(descriptor: int, event: int, deadline: float) -> None:
    """Block until the pipe is ready (or hung up, which the following read or write reports)."""
    poller = select.poll()
    poller.register(descriptor, event)
    remaining = deadline - time.monotonic()
    if remaining <= 0 or not poller.poll(math.ceil(remaining * 1000)):
        raise TimeoutError("no reply within the time limit")
