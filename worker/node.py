"""What one worker process is: its settings, its database, its card, its name in the store. Made once, before Celery starts.

The pool process inherits it by fork; `core.store.database.Database` opens its own connections there.
"""

import json
import logging
import os
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy.exc import SQLAlchemyError

from core.settings import Settings
from core.store import queue
from core.store.database import Database
from worker.drain import DrainPipe
from worker.launch import settings_environment
from worker.pinning import Device, resolve_device, runner_environment
from worker.supervisor import Command, Ending, Order, Timing, supervise

DEVICE_VARIABLE = "DRIFTLINE_DEVICE"

log = logging.getLogger(__name__)


def runner_command(claim: queue.Claim) -> list[str]:
    """The command line of the runner for ``claim``."""
    return [
        sys.executable, "-m", "worker.runner",
        "--run", claim.run_id, "--attempt", str(claim.attempt), "--fence", str(claim.fence.token),
    ]  # fmt: skip


@dataclass(frozen=True)
class Node:
    """One worker. ``command`` builds a runner's command line; tests pass their own."""

    settings: Settings
    db: Database
    device: Device
    worker_id: str
    drain: DrainPipe
    command: Command = runner_command

    @classmethod
    def register(cls, settings: Settings, command: Command = runner_command) -> "Node":
        """Pin the card and write this worker's row; raises :class:`worker.pinning.PinningError`."""
        device = resolve_device(settings.gpu)
        db = Database(settings.database_url)
        with db.write() as session:
            worker_id = queue.register_worker(
                session, hostname=socket.gethostname(), pid=os.getpid(), device=device.as_dict()
            )
        return cls(settings, db, device, worker_id, DrainPipe(), command)

    def leave(self) -> None:
        """Take this worker's row away; it ages by itself when the database does not answer."""
        try:
            with self.db.write() as session:
                queue.remove_worker(session, self.worker_id)
        except SQLAlchemyError as error:
            log.warning("could not remove the worker's row (%s); it will age", error)

    def claim(self) -> tuple[queue.Claim, float] | None:
        """Claim the next run, with the monotonic moment just before; None when there is nothing to claim."""
        before = time.monotonic()
        with self.db.write() as session:
            claimed = queue.claim(
                session, worker_id=self.worker_id, device=self.device.as_dict(), ttl=self.settings.lease_ttl_s
            )
        return None if claimed is None else (claimed, before)

    def work_off(self) -> list[str]:
        """Claim and supervise one run after another until there is none left or the worker drains; return their ids."""
        done: list[str] = []
        while not self.drain.requested and (next_run := self.claim()) is not None:
            claim, claimed_at = next_run
            self._supervise(claim, claimed_at)
            done.append(claim.run_id)
        return done

    def _supervise(self, claim: queue.Claim, claimed_at: float) -> Ending:
        order = Order(
            claim=claim,
            claimed_at=claimed_at,
            command=self.command(claim),
            env=self.runner_env(os.environ),
            log_file=self.settings.log_file(claim.run_id, claim.attempt),
        )
        return supervise(order, self.db, Timing.of(self.settings), self.drain)

    def runner_env(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """The whole environment of a runner: what is inherited, these settings, and the one device."""
        root = str(Path(__file__).resolve().parents[1])
        path = os.pathsep.join(part for part in (root, inherited.get("PYTHONPATH", "")) if part)
        return {
            **inherited,
            **settings_environment(self.settings),
            **runner_environment(self.device),
            DEVICE_VARIABLE: json.dumps(self.device.as_dict()),
            "PYTHONPATH": path,
        }


class NotConfiguredError(RuntimeError):
    """This process was not started as a Driftline worker."""


_node: Node | None = None


def configure(node: Node) -> None:
    """Make ``node`` this process's worker, and that of every process forked from it."""
    global _node  # noqa: PLW0603 - Celery builds tasks and signal handlers itself, so they can only find it here
    _node = node


def current() -> Node:
    """This process's worker; raises :class:`NotConfiguredError` with the right way to start one."""
    if _node is None:
        raise NotConfiguredError("start the worker with `python -m worker`, which pins the card before Celery starts")
    return _node
