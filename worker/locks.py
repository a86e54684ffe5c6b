"""File locks that keep two workers and two runners off one card, and two runners off one run, within one home.

They are kernel locks (flock) on files that stay: a lock ends with its holder and the processes forked from it, so there is
nothing stale to clean up. A program that the holder started with exec does not share it, since Python closes the file
there. What a runner leaves behind is therefore not kept off the card by its lock, but killed with the runner's group.
"""

import fcntl
import logging
import re
import threading
from pathlib import Path

_PAUSE_S = 0.5
_SAFE = re.compile(r"[A-Za-z0-9-]+")

log = logging.getLogger(__name__)


class LockBusyError(RuntimeError):
    """Another process still holds the lock; the message names the file."""


class FileLock:
    """One exclusive lock, held until the process ends."""

    def __init__(self, folder: Path, name: str) -> None:
        """``name`` is made of letters, digits and hyphens, such as ``gpu-<uuid>``."""
        if not _SAFE.fullmatch(name):
            raise ValueError(f"{name!r} cannot name a lock file: only letters, digits and hyphens are allowed")
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"{name}.lock"
        self._file = self.path.open("ab")

    def acquire(self, timeout_s: float) -> None:
        """Take the lock, trying for ``timeout_s`` seconds; raises :class:`LockBusyError`."""
        pause = threading.Event()
        tries = max(1, round(timeout_s / _PAUSE_S))
        for left in range(tries, -1, -1):
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if left == tries:
                    log.info("waiting for %s, which another process still holds", self.path)
                pause.wait(_PAUSE_S if left else 0.0)
            else:
                return
        raise LockBusyError(f"{self.path} is still held by another process after {timeout_s:g} s")

    def release(self) -> None:
        """Give the lock up early."""
        self._file.close()
