"""A pool of grading processes that can be killed: memory, CPU and wall-clock limits, one verdict for every answer.

Model text can make a grader loop in C code, exhaust memory or crash. Each worker is a separate process
(:mod:`core.tasks.pool_worker`) that speaks JSON lines over a socket; the pool holds the clock, has it killed with SIGKILL
and another one forked from a process that has the graders loaded. A lost answer is a verdict ``timeout``, ``error`` or
``infra_error`` with its reason, never a silent zero, and its neighbours are not touched. No signals or alarms are used, so
any thread may grade. It is not a security sandbox: the graders run no code from the answers in their own process; the code
grader has a sandbox (:mod:`core.tasks.sandbox`).
"""

import json
import math
import os
import queue
import signal
import socket
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
from core.tasks.verifiers import cpu_limit, time_limit, version_of
from core.tasks.verifiers.verdict import Outcome, Verdict
from core.tasks.verifiers.whole_numbers import judged

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
        """Process ids of the live workers and of the processes that fork them."""
        return [pid for slot in self._all for pid in slot.pids()]

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
        if (job.verifier or job.item.verifier) == "math":
            started = time.monotonic()
            if (plain := judged(job.item, job.text)) is not None:
                ms = (time.monotonic() - started) * 1000
                return Verdict(plain.verdict, plain.reason, plain.extracted, "math", version_of("math"), ms)
        slot = self._slots.get()
        try:
            return slot.grade(job)
        finally:
            self._slots.put(slot)


class _Slot:
    """One nursery and its worker; the worker is replaced whenever it was killed, died or has served its share."""

    def __init__(self, time_limit_s: float, memory_mb: int) -> None:
        self._time_limit_s = time_limit_s
        self._memory_mb = memory_mb
        self._nursery: _Nursery | None = None
        self._worker: _Worker | None = None

    def pids(self) -> list[int]:
        """Process ids of the nursery and the worker, if they live."""
        if self._nursery is None or not self._nursery.alive():
            return []
        return [self._nursery.process.pid, *([self._worker.pid] if self._worker else [])]

    def grade(self, job: Job) -> Verdict:
        """Grade one answer; when a worker that had served others breaks, the answer gets one fresh worker."""
        verifier = job.verifier or job.item.verifier
        while True:
            had_nursery = self._nursery is not None
            try:
                nursery, worker = self._ready(verifier)
            except _LoadFailedError as problem:
                return Verdict(Outcome.INFRA_ERROR, f"the grader could not be started: {problem}", None, verifier, "")
            except (OSError, EOFError) as problem:
                self.stop()
                if had_nursery:
                    continue  # it was killed from outside; a new one is tried once
                reason = f"the grader could not be started: {problem or type(problem).__name__}"
                return Verdict(Outcome.INFRA_ERROR, reason, None, verifier, "")
            fresh = worker.served == 0
            worker.served += 1
            verdict, broke = self._ask(nursery, worker, job, verifier)
            if broke:
                self._retire()
            if fresh or not broke or verdict.verdict is Outcome.TIMEOUT:
                return verdict

    def stop(self) -> None:
        """Kill the worker and its nursery, if there are any, and collect them."""
        self._retire()
        if self._nursery is not None:
            self._nursery.close()
        self._nursery = None

    def _ask(self, nursery: "_Nursery", worker: "_Worker", job: Job, verifier: str) -> tuple[Verdict, bool]:
        """Return the verdict and whether the worker is no longer to be trusted."""
        version = nursery.versions[verifier]
        limit = time_limit(verifier, self._time_limit_s)
        cpu_s = cpu_limit(verifier, limit)
        request = {
            "verifier": verifier,
            "item": job.item.as_dict(),
            "text": job.text,
            "memory_mb": self._memory_mb,
            "cpu_s": cpu_s,  # it holds also when this parent is stopped or gone
        }
        started = time.monotonic()

        def failed(outcome: Outcome, reason: str) -> tuple[Verdict, bool]:
            return Verdict(outcome, reason, None, verifier, version, (time.monotonic() - started) * 1000), True

        try:
            reply = worker.lines.exchange(request, started + limit)
            outcome = Outcome(reply["verdict"])
            details = reply["details"]
            verdict = Verdict(outcome, reply["reason"], reply["extracted"], verifier, version, reply["ms"], details)
        except TimeoutError:
            return failed(Outcome.TIMEOUT, f"grading took longer than {limit:g} s")
        except EOFError:
            self._worker = None
            return failed(*self._death(nursery.reap(worker), cpu_s))
        except (OSError, ValueError, KeyError, TypeError) as problem:
            return failed(Outcome.INFRA_ERROR, f"the grading process gave no usable reply: {problem}")
        return verdict, bool(reply["out_of_memory"])

    def _death(self, returncode: int | None, cpu_s: float) -> tuple[Outcome, str]:
        """What the end of a worker means: the signal that ended it, or that it left without a reply."""
        match -returncode if returncode is not None else signal.SIGKILL:
            case signal.SIGPROF:
                return Outcome.TIMEOUT, f"grading used more than {cpu_s:g} s of CPU time"
            case signal.SIGKILL | signal.SIGTERM:
                return Outcome.INFRA_ERROR, "the grading process was killed from outside"
            case number:
                how = f"by signal {number}" if number > 0 else "without a reply"
                return Outcome.ERROR, f"the grading process ended {how} (memory limit {self._memory_mb} MiB)"

    def _ready(self, verifier: str) -> tuple["_Nursery", "_Worker"]:
        """Have a nursery with the grader imported, and a worker forked after that."""
        if self._nursery is not None and not self._nursery.alive():
            self.stop()
        if self._nursery is None:
            self._nursery = _Nursery()
        if verifier not in self._nursery.versions:
            self._retire()
            self._nursery.load(verifier)
        if self._worker is not None and self._worker.served >= _ANSWERS_PER_PROCESS:
            self._retire()
        if self._worker is None:
            self._worker = self._nursery.spawn()
        return self._nursery, self._worker

    def _retire(self) -> None:
        """Kill the worker, if there is one; the next answer gets another."""
        worker, self._worker = self._worker, None
        if worker is not None and self._nursery is not None:
            self._nursery.reap(worker)


class _Worker:
    """One forked process: its number, the socket to it, and how many answers it was given."""

    def __init__(self, pid: int, descriptor: int) -> None:
        self.pid = pid
        self.socket = socket.socket(fileno=descriptor)
        self.lines = _Lines(self.socket)
        self.served = 0


class _Nursery:
    """The process that has graders loaded and forks workers; ``versions`` are those of the graders it has."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs:
            self.process = _start(theirs.fileno())
        self._lines = _Lines(self._socket)
        self.versions: dict[str, str] = {}

    def alive(self) -> bool:
        """Whether the process runs."""
        return self.process.poll() is None

    def load(self, verifier: str) -> None:
        """Import a grader there; raises :class:`_LoadFailedError`."""
        reply = self._lines.exchange({"load": verifier}, time.monotonic() + _STARTUP_LIMIT_S)
        if "failed" in reply:
            raise _LoadFailedError(reply["failed"])
        self.versions[verifier] = reply["version"]

    def spawn(self) -> _Worker:
        """Fork a worker."""
        reply = self._lines.exchange({"spawn": True}, time.monotonic() + _STARTUP_LIMIT_S)
        return _Worker(reply["pid"], self._lines.descriptors.pop())

    def reap(self, worker: _Worker) -> int | None:
        """Kill the worker if it lives and return how it ended, or None where the nursery is gone too."""
        worker.socket.close()
        try:
            returncode: int = self._lines.exchange({"reap": True}, time.monotonic() + _STARTUP_LIMIT_S)["returncode"]
        except (OSError, EOFError):
            return None
        return returncode

    def close(self) -> None:
        """Kill the nursery, which ends its worker with it."""
        self.process.kill()
        self.process.wait()
        self._socket.close()


class _Lines:
    """JSON lines over a socket, one reply to each request; file descriptors that come along are kept in ``descriptors``."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._buffer = b""
        self.descriptors: list[int] = []

    def exchange(self, request: dict[str, Any], deadline: float) -> dict[str, Any]:
        """Send one line and read one; raises ``TimeoutError`` at the deadline and ``EOFError`` at the other side's end."""
        try:
            self._mind(deadline)
            self._socket.sendall(json.dumps(request).encode() + b"\n")
            while b"\n" not in self._buffer:
                self._mind(deadline)
                chunk, descriptors, _flags, _address = socket.recv_fds(self._socket, 1 << 16, 1)
                if not chunk:
                    raise EOFError
                self._buffer += chunk
                self.descriptors += descriptors
        except (BrokenPipeError, ConnectionResetError):
            raise EOFError from None
        line, _, self._buffer = self._buffer.partition(b"\n")
        reply = json.loads(line)
        if not isinstance(reply, dict):
            raise ValueError("not an object")
        return reply

    def _mind(self, deadline: float) -> None:
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            raise TimeoutError
        self._socket.settimeout(remaining)


class _LoadFailedError(Exception):
    """The worker runs but its grader cannot be imported."""


def _start(descriptor: int) -> subprocess.Popen[bytes]:
    """Start a nursery with a small, fixed environment: same hash seed everywhere, one thread, nothing of ours leaks in."""
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
    return subprocess.Popen(  # noqa: S603 - our own module
        [sys.executable, "-P", "-m", "core.tasks.pool_worker", str(descriptor)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment,
        pass_fds=(descriptor,),
    )


def _inherited_path() -> Iterator[str]:
    yield from filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
