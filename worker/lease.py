"""Keeps one attempt's lease: heartbeats, and in between a cheap look at what is asked of the attempt.

It runs in its own thread, so a slow database delays neither the supervisor's reaction to its runner nor to a drain. It
decides nothing: it reports what it saw.
"""

import logging
import threading
import time
from collections.abc import Callable

from sqlalchemy.exc import SQLAlchemyError

from core.store import queue, runs
from core.store.database import Database, Fence
from core.store.errors import NotFound, StaleAttempt
from core.store.states import HELD, RunState

log = logging.getLogger(__name__)


class LeaseKeeper:
    """Extends the lease of ``fence`` every ``heartbeat_s`` and looks every ``poll_s``; calls ``wake`` on any news.

    After a successful heartbeat that began at t the lease is surely held until t + ttl on this machine's monotonic clock;
    past ``deadline`` somebody else may hold it, whether the database can be asked or not.
    """

    def __init__(
        self,
        db: Database,
        fence: Fence,
        *,
        ttl_s: float,
        heartbeat_s: float,
        poll_s: float,
        claimed_at: float,
        wake: Callable[[], None],
    ) -> None:
        """``claimed_at`` is ``time.monotonic()`` just before the claim."""
        self.cancel = False
        self.pause = False
        self.lost = False
        """The run is somebody else's by now."""
        self.ended = False
        """The attempt no longer holds the run, but nobody else does: it recorded its outcome, or its lease was taken back."""
        self.deadline = claimed_at + ttl_s
        self._db = db
        self._fence = fence
        self._ttl_s = ttl_s
        self._heartbeat_s = heartbeat_s
        self._poll_s = poll_s
        self._next_beat = claimed_at + heartbeat_s
        self._wake = wake
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="lease", daemon=True)

    def start(self) -> None:
        """Begin to keep the lease."""
        self._thread.start()

    def stop(self) -> None:
        """Stop keeping the lease. A heartbeat on its way may still arrive; the fence makes it harmless."""
        self._stop.set()
        self._thread.join(timeout=1.0)

    def _keep(self) -> None:
        while not self._stop.wait(self._poll_s) and not self.lost:
            try:
                if time.monotonic() >= self._next_beat:
                    self._beat()
                else:
                    self._look()
            except SQLAlchemyError as error:
                # The next look tries again; the supervisor watches the deadline meanwhile.
                log.warning("run %s: the database did not answer the lease keeper: %s", self._fence.run_id, error)

    def _beat(self) -> None:
        began = time.monotonic()
        try:
            with self._db.write() as session:
                signals = queue.heartbeat(session, self._fence, self._ttl_s)
        except StaleAttempt:
            self._look()
            return
        self.deadline = began + self._ttl_s
        self._next_beat = began + self._heartbeat_s
        self._report(signals.cancel, signals.pause)

    def _look(self) -> None:
        try:
            with self._db.read() as session:
                run = runs.get(session, self._fence.run_id)
        except NotFound:
            self._lose()
            return
        state = RunState(run.state)
        if run.fence != self._fence.token:
            self._lose()
        elif state in HELD:
            self._report(state == RunState.CANCELLING, state == RunState.PAUSING)
        elif not self.ended:
            self.ended = True
            self._wake()

    def _report(self, cancel: bool, pause: bool) -> None:
        if (cancel and not self.cancel) or (pause and not self.pause):
            self.cancel, self.pause = self.cancel or cancel, self.pause or pause
            self._wake()

    def _lose(self) -> None:
        self.lost = True
        self._wake()
