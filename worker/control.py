"""The pipe between a supervisor and its runner: one word a line, and the end of the file means the supervisor died.

A runner whose supervisor is gone can no longer be cancelled and its lease will be taken back, so it must end at once,
with every process it started. Three means do that, since each has a gap: a thread that reads the pipe (needs the
interpreter's lock), a guard process that watches the pipe's other end and the runner itself (needs nothing from them), and
the kernel's parent-death signal (reaches the runner only). This module records requests; jobs decide when to obey.
"""

import contextlib
import ctypes
import logging
import os
import select
import signal
import threading
from collections.abc import Callable
from typing import cast, get_args

from core.jobs import Request

_PR_SET_PDEATHSIG = 1

log = logging.getLogger(__name__)


class PipeControl:
    """The requests that reached this process; implements `core.jobs.Control`."""

    def __init__(self) -> None:
        self._asked: set[Request] = set()

    @property
    def requested(self) -> Request | None:
        """The most final request so far: cancel, then pause, then drain."""
        # A plain set, no lock: a signal handler may interrupt any of these lines.
        return next((request for request in get_args(Request) if request in self._asked), None)

    def ask(self, request: Request) -> None:
        """Add a request; requests are never taken back."""
        self._asked.add(request)

    def listen(self, descriptor: int, on_end: Callable[[], None]) -> threading.Thread:
        """Read requests from ``descriptor`` in a thread of its own; call ``on_end`` when the other side is gone."""
        thread = threading.Thread(target=self._read, args=(descriptor, on_end), name="control", daemon=True)
        thread.start()
        return thread

    def _read(self, descriptor: int, on_end: Callable[[], None]) -> None:
        with os.fdopen(descriptor, "rb", buffering=0, closefd=False) as pipe:
            for line in iter(pipe.readline, b""):
                word = line.decode(errors="replace").strip()
                if word in get_args(Request):
                    log.info("asked to %s", word)
                    self.ask(cast(Request, word))
                else:
                    log.warning("ignored the unknown request %r", word)
        on_end()


def die_with_parent(sig: signal.Signals = signal.SIGKILL) -> None:
    """Have the kernel send ``sig`` to this process when its parent dies (Linux; elsewhere it does nothing)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(sig), 0, 0, 0)


def start_guard(descriptor: int) -> None:
    """Fork a guard that kills this process group when the pipe's writer is gone or when this process ends.

    Call it first of all: a fork is only safe before threads, locks and libraries are there. Does nothing unless this
    process leads its own group, since the group would then be somebody else's.
    """
    leader = os.getpid()
    if os.getpgrp() != leader:
        return
    leader_descriptor = os.pidfd_open(leader)
    if os.fork() == 0:
        _guard(descriptor, leader_descriptor, leader)
    os.close(leader_descriptor)


def kill_own_group() -> None:
    """Kill this process and, when it leads its group, every process in it; never returns."""
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpgrp(), signal.SIGKILL)
    os._exit(137)


def _guard(pipe: int, leader_descriptor: int, group: int) -> None:
    """Body of the guard process; never returns."""
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    poller = select.poll()
    # No POLLIN on the pipe: the words are the runner's to read, the guard only wants to know of its end.
    poller.register(pipe, 0)
    poller.register(leader_descriptor, select.POLLIN)
    try:
        poller.poll()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
        os._exit(0)
