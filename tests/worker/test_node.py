"""One worker over many runs: in which order it takes them, how it pauses after crashes, and that a card has one worker."""

import sys
import threading
from dataclasses import replace

import pytest

from core.store import queue
from worker import node as node_module
from worker.drain import DrainPipe
from worker.lifecycle import WorkerBeat
from worker.node import Node, Streak
from worker.pinning import Device, PinningError
from worker.supervisor import Ending

CARD = Device("cuda", "GPU-1", "card", "570", 0, 24 * 2**30, 2)


class RecordedPauses:
    """A drain that is asked for after so many pauses, none of which it sleeps."""

    def __init__(self, drain_after=1000):
        self.pauses, self.drain_after = [], drain_after

    @property
    def requested(self):
        return len(self.pauses) >= self.drain_after

    def wait(self, seconds):
        self.pauses.append(seconds)
        return self.requested


def broken_worker(settings, drain):
    """A worker whose runners end without an outcome, whatever the run."""
    node = Node.register(settings, lambda _claim: [sys.executable, "-S", "-c", ""])
    return replace(node, drain=drain)


def rows(db):
    with db.read() as session:
        return queue.live_workers(session, 60.0)


def test_a_broken_worker_pauses_longer_each_time_then_gives_up_and_leaves_the_rest_queued(settings, desk, db):
    low, high, also_low = desk.submit("a"), desk.submit("b", priority=5), desk.submit("c")
    drain = RecordedPauses()
    worker = broken_worker(settings, drain)

    # The most urgent run first, then the oldest; each is tried three times in a row and then failed.
    assert worker.work_off() == [high] * 3 + [low] * 3 + [also_low]

    assert drain.pauses == [5.0, 30.0, 120.0, 120.0, 120.0, 120.0]
    assert [desk.state(run_id) for run_id in (high, low, also_low)] == ["failed", "failed", "queued"]
    (row,) = rows(db)
    assert all(run_id in row.unready_reason for run_id in (high, low, also_low))
    assert "start the worker anew" in row.unready_reason
    assert worker.work_off() == []
    assert Node.register(settings).claim() is not None


def test_the_streak_outlasts_a_doorbell(settings, desk):
    desk.submit("a", max_attempts=1)
    drain = RecordedPauses()
    worker = broken_worker(settings, drain)
    worker.work_off()
    desk.submit("b", max_attempts=1)

    worker.work_off()

    assert drain.pauses == [5.0, 30.0]


def test_a_drain_ends_the_pause_and_nothing_more_is_claimed(settings, desk):
    run_id = desk.submit("a")
    worker = broken_worker(settings, RecordedPauses(drain_after=1))

    assert worker.work_off() == [run_id]
    assert desk.state(run_id) == "queued"


def test_an_outcome_ends_the_streak_and_a_busy_card_is_no_crash():
    streak = Streak()
    for ending, run_id in [
        (Ending.INTERRUPTED, "a"),
        (Ending.BUSY, "b"),
        (Ending.LOST, "c"),
        (Ending.INTERRUPTED, "a"),
    ]:
        streak.add(ending, run_id)
    assert (streak.attempts, streak.crashed) == (3, {"a"})

    streak.add(Ending.RECORDED, "d")

    assert (streak.attempts, streak.crashed) == (0, set())


def test_waiting_for_a_drain_ends_with_it():
    drain = DrainPipe()
    assert not drain.wait(0.01)
    waiter = threading.Thread(target=drain.wait, args=(3600.0,), daemon=True)
    waiter.start()

    drain.request()

    waiter.join(30)
    assert not waiter.is_alive()
    assert drain.wait(3600.0)


def test_a_card_has_one_worker_at_a_time(settings, db, monkeypatch):
    monkeypatch.setattr(node_module, "resolve_device", lambda _gpu: CARD)
    monkeypatch.setattr(node_module, "CARD_TIMEOUT_S", 0.0)
    first = Node.register(settings)

    with pytest.raises(PinningError, match=r"card \(GPU-1\) already has a worker.*worker-gpu-GPU-1.*DRIFTLINE_GPU"):
        Node.register(settings)

    assert [row.id for row in rows(db)] == [first.worker_id]
    first.leave()
    Node.register(settings).leave()


def test_a_cpu_may_have_several_workers(settings, db):
    Node.register(settings)
    Node.register(settings)
    assert len(rows(db)) == 2


def test_a_worker_that_was_forgotten_enrols_again_with_its_next_heartbeat(settings, db):
    worker = Node.register(settings)
    with db.write() as session:
        queue.remove_worker(session, worker.worker_id)
    beat = WorkerBeat(worker)
    beat.start()
    beat.stop()

    assert [(row.id, row.pid, row.device) for row in rows(db)] == [
        (worker.worker_id, worker.pid, worker.device.as_dict())
    ]
