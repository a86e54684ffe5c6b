"""What one worker process is: its settings, its database, its card, its name in the store. Made once, before Celery starts.

The pool process inherits it by fork; `core.store.database.Database` opens its own connections there.
"""

import json
import logging
import os
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from core.settings import Settings
from core.store import queue
from core.store.database import Database
from core.store.types import new_id
from worker.drain import DrainPipe
from worker.launch import settings_environment
from worker.locks import FileLock, LockBusyError
from worker.pinning import Device, PinningError, resolve_device, runner_environment
from worker.supervisor import Command, Ending, Order, Timing, supervise

DEVICE_VARIABLE = "DRIFTLINE_DEVICE"

PAUSES_S = (5.0, 30.0, 120.0)
"""Seconds without a claim after the first, second and every further attempt in a row that came to nothing."""

CRASHED_RUNS = 3
"""Different runs that crash in a row before the worker, not the runs, is taken to be broken."""

CARD_TIMEOUT_S = 10.0
"""Seconds a starting worker waits for one that is just ending to let go of the card."""

log = logging.getLogger(__name__)


def runner_command(claim: queue.Claim) -> list[str]:
    """The command line of the runner for ``claim``."""
    return [
        sys.executable, "-m", "worker.runner",
        "--run", claim.run_id, "--attempt", str(claim.attempt), "--fence", str(claim.fence.token),
    ]  # fmt: skip


@dataclass
class Streak:
    """What came to nothing since the last attempt that reached an outcome of its own."""

    attempts: int = 0
    crashed: set[str] = field(default_factory=set)

    def add(self, ending: Ending, run_id: str) -> None:
        """Count how the attempt of ``run_id`` ended. A lost lease says nothing about this worker."""
        match ending:
            case Ending.RECORDED:
                self.attempts, self.crashed = 0, set()
            case Ending.INTERRUPTED | Ending.BUSY:
                self.attempts += 1
                if ending == Ending.INTERRUPTED:
                    self.crashed.add(run_id)
            case Ending.LOST:
                pass


@dataclass(frozen=True)
class Node:
    """One worker. ``command`` builds a runner's command line; tests pass their own, and shorter ``pauses_s``."""

    settings: Settings
    db: Database
    device: Device
    worker_id: str
    drain: DrainPipe
    command: Command = runner_command
    card: FileLock | None = None
    """The lock that keeps a second worker off the card; the pool process shares it, so it lasts as long as both."""
    pid: int = field(default_factory=os.getpid)
    pauses_s: Sequence[float] = PAUSES_S
    streak: Streak = field(default_factory=Streak)

    @classmethod
    def register(cls, settings: Settings, command: Command = runner_command) -> "Node":
        """Pin the card and write this worker's row; raises :class:`worker.pinning.PinningError`."""
        device = resolve_device(settings.gpu)
        card = _take_card(settings, device)
        node = cls(settings, Database(settings.database_url), device, new_id(), DrainPipe(), command, card)
        with node.db.write() as session:
            node.enrol(session)
        return node

    def enrol(self, session: Session) -> None:
        """Write this worker's row, at the start and whenever it was forgotten meanwhile."""
        queue.register_worker(
            session,
            hostname=socket.gethostname(),
            pid=self.pid,
            device=self.device.as_dict(),
            worker_id=self.worker_id,
        )

    def leave(self) -> None:
        """Take this worker's row away; it ages by itself when the database does not answer."""
        try:
            with self.db.write() as session:
                queue.remove_worker(session, self.worker_id)
        except SQLAlchemyError as error:
            log.warning("could not remove the worker's row (%s); it will age", error)
        if self.card is not None:
            self.card.release()

    def claim(self) -> tuple[queue.Claim, float] | None:
        """Claim the next run, with the monotonic moment just before; None when there is nothing to claim."""
        before = time.monotonic()
        with self.db.write() as session:
            claimed = queue.claim(
                session, worker_id=self.worker_id, device=self.device.as_dict(), ttl=self.settings.lease_ttl_s
            )
        return None if claimed is None else (claimed, before)

    def work_off(self) -> list[str]:
        """Claim and supervise one run after another until there is none left or the worker drains; return their ids.

        After an attempt that came to nothing it pauses, longer each time in a row, and when `CRASHED_RUNS` different runs
        crashed in a row it marks itself unready: the store then gives it no run until it is started anew.
        """
        done: list[str] = []
        while not self.drain.requested and (next_run := self.claim()) is not None:
            claim, claimed_at = next_run
            self.streak.add(self._supervise(claim, claimed_at), claim.run_id)
            done.append(claim.run_id)
            if self.streak.attempts and not self.drain.requested:
                self._recover()
        return done

    def _recover(self) -> None:
        """Pause, or give up."""
        crashed = self.streak.crashed
        if len(crashed) >= CRASHED_RUNS:
            reason = (
                f"{len(crashed)} different runs crashed in a row ({', '.join(sorted(crashed))}); see their logs, mend what "
                "is wrong with this machine and start the worker anew"
            )
            log.error("worker %s claims nothing more: %s", self.worker_id, reason)
            with self.db.write() as session:
                queue.mark_unready(session, self.worker_id, reason)
            return
        pause = self.pauses_s[min(self.streak.attempts, len(self.pauses_s)) - 1]
        log.warning(
            "attempts that came to nothing in a row: %s; the next claim is in %g s", self.streak.attempts, pause
        )
        self.drain.wait(pause)

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


def _take_card(settings: Settings, device: Device) -> FileLock | None:
    """Hold the card for this worker alone; a CPU may have several. Raises :class:`worker.pinning.PinningError`."""
    if device.kind != "cuda":
        return None
    lock = FileLock(settings.locks_dir, f"worker-gpu-{device.uuid}")
    try:
        lock.acquire(CARD_TIMEOUT_S)
    except LockBusyError as error:
        raise PinningError(
            f"{device.name} ({device.uuid}) already has a worker ({error}). One worker runs on one card: stop the other, "
            "or name another card in DRIFTLINE_GPU"
        ) from error
    return lock


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
