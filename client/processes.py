"""Processes named so that no other can be meant: by pid and start time together, and by pidfd while one waits.

Pids are used again, so a pid from a file proves nothing by itself. Needs Linux 5.3 or newer; standard library only.
"""

import os
import select
import signal
from dataclasses import dataclass
from pathlib import Path

_START_TIME_FIELD = 19  # of /proc/PID/stat, counted behind the command's closing bracket


@dataclass(frozen=True)
class Process:
    """A process of this machine; ``started`` is its start in clock ticks since boot."""

    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> "Process":
        """The process that has ``pid`` now; raises ProcessLookupError."""
        return cls(pid, _start_ticks(pid))

    @property
    def alive(self) -> bool:
        """Whether this very process still runs (a zombie does not)."""
        try:
            return _start_ticks(self.pid) == self.started
        except ProcessLookupError:
            return False


def is_running(pid: int) -> bool:
    """Whether some process has this pid (a zombie has ended)."""
    try:
        Process.of(pid)
    except ProcessLookupError:
        return False
    return True


def ended(descriptor: int, timeout_s: float = 0.0) -> bool:
    """Whether the process behind this pidfd has ended; waits for it up to ``timeout_s``."""
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    return bool(poller.poll(timeout_s * 1000))


def terminate(process: Process, timeout_s: float, sig: signal.Signals = signal.SIGTERM) -> bool:
    """Send ``sig`` to exactly this process and wait for its end; whether it has ended."""
    if not process.alive:
        return True
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return True
    try:
        if not process.alive:  # the descriptor may be of a newer process with the same pid
            return True
        signal.pidfd_send_signal(descriptor, sig)
        return ended(descriptor, timeout_s)
    finally:
        os.close(descriptor)


def _start_ticks(pid: int) -> int:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        raise ProcessLookupError(f"no process has the pid {pid}") from None
    fields = stat[stat.rindex(")") + 2 :].split()
    if fields[0] in "ZX":
        raise ProcessLookupError(f"process {pid} has ended")
    return int(fields[_START_TIME_FIELD])
