"""The sweeper: takes back expired leases, rings queued runs again and empties the outbox, every few seconds.

It is a thread of the api. Any number of apis may run one; a named lease in the database lets one of them sweep at a time.
It decides nothing itself: the rules are the store's.
"""

import logging
import os
import socket
import threading

from core.settings import Settings
from core.store import queue
from core.store.database import Database
from core.store.types import new_id
from worker.doorbell import flush_outbox

LEASE = "sweeper"
_LEASE_SWEEPS = 3

log = logging.getLogger(__name__)


class Sweeper:
    """Sweeps every ``settings.sweep_s`` seconds while it holds the lease; survives an absent database or broker."""

    def __init__(self, db: Database, broker_url: str, settings: Settings) -> None:
        self.owner = f"{socket.gethostname()}:{os.getpid()}:{new_id()}"
        self._db = db
        self._broker_url = broker_url
        self._every_s = settings.sweep_s
        self._wake = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._loop, name="sweeper", daemon=True)

    def start(self) -> None:
        """Begin; the first sweep comes at once."""
        self._thread.start()

    def stop(self) -> None:
        """End after the present sweep and let another sweeper take over."""
        self._stopping = True
        self._wake.set()
        self._thread.join(timeout=10.0)

    def nudge(self) -> None:
        """Sweep soon: something was just put into the outbox."""
        self._wake.set()

    def sweep_once(self) -> queue.SweepReport | None:
        """Sweep and ring now; None when another sweeper holds the lease. Raises what the database raises."""
        with self._db.write() as session:
            if not queue.acquire_named_lease(session, LEASE, self.owner, self._every_s * _LEASE_SWEEPS):
                return None
            report = queue.sweep(session)
        if report.expired or report.rung:
            log.info("took back %s, rang again for %s", report.expired or "nothing", report.rung or "nothing")
        flush_outbox(self._db, self._broker_url)
        return report

    def _loop(self) -> None:
        while not self._stopping:
            try:
                self.sweep_once()
            except Exception:
                # A sweeper that dies leaves runs queued for ever, so nothing may end this thread but `stop`.
                log.exception("the sweep failed and is tried again in %s s", self._every_s)
            self._wake.wait(self._every_s)
            self._wake.clear()
        self._release()

    def _release(self) -> None:
        try:
            with self._db.write() as session:
                queue.release_named_lease(session, LEASE, self.owner)
        except Exception:
            log.exception("could not release the sweeper's lease; it expires by itself")
