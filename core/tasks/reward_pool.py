"""Processes that run own reward functions and can be killed: a wall-clock, CPU and memory limit for every call.

A function of the operator's is ordinary code that can loop, exhaust memory or crash, so it never runs in the trainer's
process. A call that gives no number is a sample without this term, with its reason; a process that could not be
started or was killed from outside is the machinery's failure, which masks the sample. It is no sandbox: the file is the
operator's.
"""

import contextlib
import json
import os
import queue
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from core.tasks.answers import Answer
from core.tasks.reward_files import RewardFunction

_ROOT = Path(__file__).resolve().parents[2]
_LOAD_LIMIT_S = 120.0
_CALLS_PER_PROCESS = 10_000


class RewardLoadError(ValueError):
    """A reward file cannot be loaded; the message names the term, the file and why."""


@dataclass(frozen=True)
class Call:
    """One call: the function, the sample it judges, its keyword arguments and the seed of its random numbers."""

    function: RewardFunction
    answer: Answer
    arguments: Mapping[str, Any]
    seed: int


@dataclass(frozen=True)
class Scored:
    """``value`` is finite or None; ``error`` says why a call failed; ``infra`` that the machinery did, not the function."""

    value: float | None
    error: str | None = None
    infra: bool = False


class RewardPool:
    """``workers`` processes, started when first needed. Use as a context manager or call :meth:`close`.

    ``time_limit_s`` is wall-clock time for one call, ``memory_mb`` the address space of one process in MiB.
    """

    def __init__(self, workers: int = 2, time_limit_s: float = 10.0, memory_mb: int = 2048) -> None:
        self._all = [_Process(time_limit_s, memory_mb) for _ in range(workers)]
        self._free: queue.SimpleQueue[_Process] = queue.SimpleQueue()
        for one in self._all:
            self._free.put(one)
        self._threads = ThreadPoolExecutor(max_workers=workers, thread_name_prefix="rewarding")

    def check(self, functions: Mapping[str, RewardFunction]) -> None:
        """Load every file once, so that one that cannot be run is told before any step; raises :class:`RewardLoadError`."""
        process = self._free.get()
        try:
            for term, function in functions.items():
                process.ready(function)
                if process.failed:
                    raise RewardLoadError(f"{term} cannot be used: {process.failed}")
        finally:
            process.stop()
            self._free.put(process)

    def score(self, calls: Sequence[Call]) -> list[Scored]:
        """Return one result per call, in order; raises :class:`RewardLoadError` when a file can no longer be loaded."""
        return list(self._threads.map(self._one, calls))

    def close(self) -> None:
        """End the processes after the calls in hand; calling it again does nothing."""
        self._threads.shutdown(wait=True)
        for one in self._all:
            one.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _one(self, call: Call) -> Scored:
        process = self._free.get()
        try:
            return process.score(call)
        finally:
            self._free.put(process)


class _DiedError(Exception):
    """The process ended; ``returncode`` says how."""

    def __init__(self, returncode: int) -> None:
        super().__init__(f"the reward process ended with status {returncode}")
        self.returncode = returncode


class _Process:
    """One worker process, started anew after it was killed or died."""

    def __init__(self, time_limit_s: float, memory_mb: int) -> None:
        self._limit_s = time_limit_s
        self._memory_mb = memory_mb
        self._process: subprocess.Popen[bytes] | None = None
        self._loaded: set[str] = set()
        self._buffer = b""
        self._served = 0
        self.failed = ""

    def score(self, call: Call) -> Scored:
        """Make one call; whatever breaks the process breaks this call only."""
        try:
            self.ready(call.function)
        except (OSError, TimeoutError, _DiedError, ValueError) as problem:
            self.stop()
            return Scored(None, f"the reward process could not be started: {problem}", infra=True)
        if self.failed:
            raise RewardLoadError(self.failed)
        self._served += 1
        request = {
            "sha256": call.function.sha256,
            "function": call.function.function,
            "prompt": call.answer.prompt,
            "completion": call.answer.text,
            "item": call.answer.item.as_dict(),
            "arguments": dict(call.arguments),
            "seed": call.seed,
            "memory_mb": self._memory_mb,
            "cpu_s": self._limit_s + 1,  # a second line of defence, for when this parent is stopped or gone
        }
        try:
            reply = self._exchange(request, time.monotonic() + self._limit_s)
        except TimeoutError:
            self.stop()
            return Scored(None, f"it took longer than {self._limit_s:g} s")
        except _DiedError as death:
            self.stop()
            outside = death.returncode in (-signal.SIGKILL, -signal.SIGTERM)
            return Scored(None, f"{death} (memory limit {self._memory_mb} MiB)", infra=outside)
        except (OSError, ValueError) as problem:
            self.stop()
            return Scored(None, f"the reward process gave no usable reply: {problem}", infra=True)
        return Scored(reply.get("value"), reply.get("error"))

    def ready(self, function: RewardFunction) -> None:
        """Have a live process with the file loaded; ``failed`` says why its file could not be."""
        self.failed = ""
        if self._served >= _CALLS_PER_PROCESS or (self._process is not None and self._process.poll() is not None):
            self.stop()
        if self._process is None:
            self._process = _start()
            self._loaded, self._buffer, self._served = set(), b"", 0
        key = f"{function.sha256}:{function.function}"
        if key in self._loaded:
            return
        request = {"load": str(function.path), "sha256": function.sha256, "function": function.function}
        try:
            reply = self._exchange(request, time.monotonic() + _LOAD_LIMIT_S)
        except TimeoutError:
            self.stop()
            raise
        self.failed = reply.get("failed", "")
        if not self.failed:
            self._loaded.add(key)

    def stop(self) -> None:
        """Kill the process, if there is one, and collect it."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    def _exchange(self, request: dict[str, Any], deadline: float) -> dict[str, Any]:
        """Send one line and read one; raises ``TimeoutError`` at the deadline and :class:`_DiedError` at end of file."""
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            view = memoryview(json.dumps(request).encode() + b"\n")
            while view:
                _wait(process.stdin.fileno(), select.POLLOUT, deadline)
                with contextlib.suppress(BlockingIOError):
                    view = view[os.write(process.stdin.fileno(), view) :]
            while b"\n" not in self._buffer:
                _wait(process.stdout.fileno(), select.POLLIN, deadline)
                chunk = os.read(process.stdout.fileno(), 1 << 16)
                if not chunk:
                    raise _DiedError(process.wait())
                self._buffer += chunk
        except BrokenPipeError:
            raise _DiedError(process.wait()) from None
        line, _, self._buffer = self._buffer.partition(b"\n")
        reply = json.loads(line)
        if not isinstance(reply, dict):
            raise ValueError("not an object")
        return reply


def _start() -> subprocess.Popen[bytes]:
    """Start a process with a small, fixed environment: one thread, one hash seed, and no secret of the service."""
    inherited = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    environment = {
        "PATH": os.environ.get("PATH", ""),
        "LANG": "C.UTF-8",
        "PYTHONPATH": os.pathsep.join([str(_ROOT), *inherited]),
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "core.tasks.reward_worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
        bufsize=0,
    )
    assert process.stdin is not None
    os.set_blocking(process.stdin.fileno(), False)
    return process


def _wait(descriptor: int, event: int, deadline: float) -> None:
    poller = select.poll()
    poller.register(descriptor, event)
    left = deadline - time.monotonic()
    if left <= 0 or not poller.poll(left * 1000):
        raise TimeoutError("no reply within the time limit")
