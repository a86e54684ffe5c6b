"""The doorbell: tells a worker that there is something to claim.

The message carries a run id as a hint; the row in the database is the job. A ring that fails is therefore no error: the
outbox keeps the row and the sweeper rings again. Ringing twice is harmless.
"""

import logging

import redis
from kombu.exceptions import KombuError, OperationalError

from core.store import queue
from core.store.database import Database
from worker.broker import RING_TASK, publisher

_BATCH = 100

log = logging.getLogger(__name__)


def ring(broker_url: str, run_id: str) -> bool:
    """Publish one doorbell for ``run_id``; return whether the broker took it, within a few seconds."""
    app = publisher(broker_url)
    try:
        with app.connection_for_write() as connection:
            app.send_task(RING_TASK, kwargs={"run_id": run_id}, connection=connection, retry=False)
    except (OperationalError, KombuError, redis.RedisError, OSError) as error:
        log.warning("the broker did not take the doorbell of run %s: %s", run_id, error)
        return False
    return True


def flush_outbox(db: Database, broker_url: str) -> int:
    """Ring for every waiting outbox row, oldest first, and mark those the broker took; return their number.

    It stops at the first refusal, since a broker that is away answers none of the others either. No transaction is open
    while it talks to the broker; a crash in between rings twice, which is harmless.
    """
    total = 0
    while True:
        with db.read() as session:
            pending = [(row.id, row.run_id) for row in queue.outbox_pending(session, _BATCH)]
        taken: list[int] = []
        for row_id, run_id in pending:
            if not ring(broker_url, run_id):
                break
            taken.append(row_id)
        refused = [row_id for row_id, _ in pending[len(taken) :][:1]]
        if pending:
            with db.write() as session:
                queue.outbox_sent(session, taken)
                queue.outbox_failed(session, refused)
        total += len(taken)
        if len(taken) < _BATCH:
            return total
