"""What the worker does at Celery's moments: heartbeat its row in the parent, drain on signals, follow the parent in the pool.

The heartbeat is a thread of the parent, so its age in the store is honest while a run is busy and while nothing is to do.
"""

import logging
import os
import signal
import threading
from typing import Any

from celery.signals import worker_process_init, worker_ready, worker_shutdown
from sqlalchemy.exc import SQLAlchemyError

from core.store import queue
from worker import node

log = logging.getLogger(__name__)


class WorkerBeat:
    """Writes the worker's heartbeat every ``heartbeat_s`` until stopped; survives an absent database."""

    def __init__(self, worker: node.Node) -> None:
        self._worker = worker
        self._stop = threading.Event()
        self._writing = threading.Lock()
        self._thread = threading.Thread(target=self._beat, name="worker-beat", daemon=True)

    def start(self) -> None:
        """Begin. From now on a fork of this process waits until no heartbeat is being written.

        A fork in the middle of one would copy the database library's locks in the locked state.
        """
        os.register_at_fork(
            before=self._writing.acquire, after_in_parent=self._writing.release, after_in_child=self._writing.release
        )
        self._thread.start()

    def stop(self) -> None:
        """End after the heartbeat on its way."""
        self._stop.set()
        self._thread.join(timeout=5.0)

    def _beat(self) -> None:
        while True:
            with self._writing:
                self._write()
            if self._stop.wait(self._worker.settings.heartbeat_s):
                return

    def _write(self) -> None:
        try:
            with self._worker.db.write() as session:
                if not queue.worker_heartbeat(session, self._worker.worker_id):
                    self._worker.enrol(session)
        except SQLAlchemyError as error:
            log.warning("the database did not take the worker's heartbeat: %s", error)


_beats: list[WorkerBeat] = []


def _on_ready(**_: Any) -> None:
    # Sent again after every reconnection to the broker.
    if _beats:
        return
    worker = node.current()
    beat = WorkerBeat(worker)
    _beats.append(beat)
    beat.start()
    worker.drain.on_signals(signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
    log.info("worker %s is ready on %s (%s)", worker.worker_id, worker.device.name, worker.device.uuid)


def _on_pool_process(**_: Any) -> None:
    node.current().drain.follow_parent()


def _on_shutdown(**_: Any) -> None:
    for beat in _beats:
        beat.stop()


worker_ready.connect(_on_ready)
worker_process_init.connect(_on_pool_process)
worker_shutdown.connect(_on_shutdown)
