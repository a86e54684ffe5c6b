"""One runner process as its supervisor sees it: started in its own session, spoken to over a pipe, killed as a group.

It knows nothing of runs, leases or the store.
"""

import contextlib
import logging
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

log = logging.getLogger(__name__)


class RunnerProcess:
    """A started runner. ``on_exit`` is called once, from a thread, when the runner itself has ended."""

    def __init__(
        self, command: Sequence[str], env: Mapping[str, str], log_file: Path, on_exit: Callable[[], None]
    ) -> None:
        """Start ``command`` with exactly ``env``, its output appended to ``log_file``; raises OSError."""
        log_file.parent.mkdir(parents=True, exist_ok=True)
        with log_file.open("ab") as output:
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                list(command),
                env=dict(env),
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._exited = threading.Event()
        self._on_exit = on_exit
        threading.Thread(target=self._await_exit, name="runner-exit", daemon=True).start()

    @property
    def pid(self) -> int:
        """The runner's process id, which is also its group's."""
        return self._process.pid

    @property
    def exited(self) -> bool:
        """Whether the runner itself has ended; processes it started may still be there."""
        return self._exited.is_set()

    def tell(self, word: str) -> None:
        """Write one word to the control pipe; a runner that has just ended hears nothing."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError, ValueError):
            self._process.stdin.write(f"{word}\n".encode())
            self._process.stdin.flush()

    def end(self) -> int:
        """Kill what is left of the group and return the runner's status (negative: killed by that signal)."""
        # The runner is not reaped yet, even if it has ended, so its number cannot mean another group by now.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self._exited.wait()
        status = self._process.wait()
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        return status

    def _await_exit(self) -> None:
        # WNOWAIT leaves the zombie in place until `end` has killed its group.
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        self._exited.set()
        self._on_exit()


def describe_status(status: int) -> str:
    """Say in words how a process ended."""
    if status >= 0:
        return f"exit status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    hint = " (the kernel does this when memory runs out)" if name == "SIGKILL" else ""
    return f"killed by {name}{hint}"
