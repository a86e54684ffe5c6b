"""``python -m client.tether PARENT COMMAND...``: become COMMAND, and get SIGTERM from the kernel when PARENT dies.

A supervisor that is killed outright can tell its children nothing; this ties them to it beforehand. Doing it in a process
of its own avoids running Python between fork and exec. The wish survives exec (prctl(2), PR_SET_PDEATHSIG).
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> int:
    """Tie, then replace this process; returns only when the parent died meanwhile."""
    parent, command = int(arguments[0]), arguments[1:]
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    if os.getppid() == parent:
        os.execv(command[0], command)  # noqa: S606 - the supervisor's own command line, no shell
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
