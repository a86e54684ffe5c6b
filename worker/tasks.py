"""The one task: somebody rang, so work off whatever can be claimed."""

import logging

from worker import node
from worker.app import app
from worker.broker import RING_TASK

log = logging.getLogger(__name__)


@app.task(name=RING_TASK)  # type: ignore[untyped-decorator]
def ring(run_id: str) -> None:
    """Claim runs, the most urgent first, until none is left. ``run_id`` only says why the bell rang."""
    done = node.current().work_off()
    log.info("doorbell of run %s: worked off %s", run_id, ", ".join(done) or "nothing")
