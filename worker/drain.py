"""How the worker's parent process tells its pool process to drain: by closing a pipe.

Celery's own soft shutdown is no use here: it sleeps its whole timeout inside the signal handler and tells the pool process
nothing. A pipe needs no signal in the child and closes by itself when the parent is killed.
"""

import contextlib
import os
import select
import signal
import threading
from types import FrameType


class DrainPipe:
    """Made in the parent before it forks; the parent closes it to drain, the child reads its end.

    ``requested`` is a plain attribute, because signal handlers set it and may interrupt any line.
    """

    def __init__(self) -> None:
        self.requested = False
        self._read_end, self._write_end = os.pipe()

    def request(self) -> None:
        """Drain: in the parent this reaches the child too. Safe in a signal handler; asking again changes nothing."""
        self.requested = True
        descriptor, self._write_end = self._write_end, -1
        if descriptor >= 0:
            os.close(descriptor)

    def wait(self, seconds: float) -> bool:
        """Sleep for ``seconds``, or until a drain is asked for; return whether one is."""
        # The pipe's end rather than an event: a signal handler that sets an event may deadlock with the one waiting on it.
        poller = select.poll()
        poller.register(self._read_end, 0)
        # Not left to the thread of `follow_parent`, which may see the same end a moment later.
        self.requested = bool(poller.poll(seconds * 1000)) or self.requested
        return self.requested

    def follow_parent(self) -> None:
        """In a forked child: drop the writing end, and drain when the parent's is closed."""
        descriptor, self._write_end = self._write_end, -1
        if descriptor >= 0:
            os.close(descriptor)
        # systemd and some container tools signal every process. The parent gets it too and says so over the pipe, whereas
        # the pool's own handler would end the supervisor in the middle; it leaves a signal alone that is ignored.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        threading.Thread(target=self._await_end, name="drain", daemon=True).start()

    def on_signals(self, *numbers: signal.Signals) -> None:
        """In the parent: drain on these signals first, then do what was installed for them before."""
        for number in numbers:
            before = signal.getsignal(number)

            def handler(received: int, frame: FrameType | None, before: object = before) -> None:
                self.request()
                if callable(before):
                    before(received, frame)

            signal.signal(number, handler)

    def _await_end(self) -> None:
        with contextlib.suppress(OSError):
            os.read(self._read_end, 1)
        self.requested = True
