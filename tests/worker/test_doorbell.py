"""Doorbells over a real Valkey: rung, refused, and kept by the outbox until the broker is there."""

import json
import socket
import threading

import pytest
import redis

from core.store import queue
from tests.worker.ports import free_port
from tests.worker.waiting import wait_until
from worker.broker import KEY_PREFIX, QUEUE, RING_TASK
from worker.doorbell import flush_outbox, ring
from worker.embedded import EmbeddedValkey
from worker.sweeper import LEASE, Sweeper


@pytest.fixture(scope="module")
def valkey(tmp_path_factory):
    server = EmbeddedValkey(tmp_path_factory.mktemp("broker"), free_port())
    server.start()
    yield server
    server.stop()


@pytest.fixture
def bells(valkey):
    client = redis.Redis.from_url(valkey.url, decode_responses=True)
    client.flushall()
    yield lambda: [json.loads(raw) for raw in client.lrange(KEY_PREFIX + QUEUE, 0, -1)]
    client.close()


@pytest.fixture
def dead_broker():
    return f"redis://127.0.0.1:{free_port()}/0"


def pending(db):
    with db.read() as session:
        return [row.run_id for row in queue.outbox_pending(session, 100)]


def test_a_ring_leaves_one_json_message_with_the_run_id(valkey, bells):
    assert ring(valkey.url, "a" * 12)

    (message,) = bells()
    assert message["content-type"] == "application/json"
    assert message["headers"]["task"] == RING_TASK
    assert "a" * 12 in message["headers"]["kwargsrepr"]


def test_a_ring_that_nobody_hears_is_no_error(dead_broker):
    assert not ring(dead_broker, "a" * 12)


def test_a_broker_that_accepts_but_never_answers_does_not_hold_the_caller():
    with socket.create_server(("127.0.0.1", 0)) as mute:
        assert not ring(f"redis://127.0.0.1:{mute.getsockname()[1]}/0", "a" * 12)


def test_the_outbox_is_emptied_oldest_first(valkey, bells, db, desk):
    first, second = desk.submit("a"), desk.submit("b")

    assert flush_outbox(db, valkey.url) == 2

    # Celery pushes on the left and pops on the right.
    rung = [message["headers"]["kwargsrepr"] for message in reversed(bells())]
    assert [first in rung[0], second in rung[1]] == [True, True]
    assert pending(db) == []
    assert desk.run(first).rung_at is not None
    assert flush_outbox(db, valkey.url) == 0


def test_more_doorbells_than_one_batch_are_all_sent(valkey, bells, db, desk, monkeypatch):
    monkeypatch.setattr("worker.doorbell._BATCH", 2)
    for name in "abcde":
        desk.submit(name)

    assert flush_outbox(db, valkey.url) == 5
    assert len(bells()) == 5


def test_the_outbox_keeps_what_the_broker_did_not_take(dead_broker, db, desk):
    run_id = desk.submit("a")

    assert flush_outbox(db, dead_broker) == 0
    assert pending(db) == [run_id]


def test_one_sweeper_at_a_time_sweeps_and_the_next_takes_over(valkey, bells, db, settings):
    first, second = Sweeper(db, valkey.url, settings), Sweeper(db, valkey.url, settings)

    assert first.sweep_once() is not None
    assert second.sweep_once() is None

    first.start()
    first.stop()
    assert second.sweep_once() is not None


def test_a_sweep_takes_back_an_expired_lease_and_rings(valkey, bells, db, desk, settings):
    run_id = desk.submit("a")
    with db.write() as session:
        queue.outbox_sent(session, [row.id for row in queue.outbox_pending(session, 10)])
        queue.claim(session, worker_id="b" * 12, device={"kind": "cpu"}, ttl=-1.0)

    report = Sweeper(db, valkey.url, settings).sweep_once()

    assert report.expired == [run_id]
    assert desk.state(run_id) == "queued"
    assert len(bells()) == 1


def test_the_sweeper_survives_an_absent_broker_and_a_failing_database(
    valkey, bells, db, desk, settings, monkeypatch, caplog
):
    run_id = desk.submit("a")
    failures = iter([RuntimeError("the disk is full"), RuntimeError("still full")])
    failed_twice = threading.Event()
    sweep = queue.sweep

    def failing_sweep(session):
        error = next(failures, None)
        if error is not None:
            raise error
        failed_twice.set()
        return sweep(session)

    monkeypatch.setattr(queue, "sweep", failing_sweep)
    sweeper = Sweeper(db, valkey.url, settings)
    sweeper.start()
    try:
        assert failed_twice.wait(20)
        wait_until(lambda: pending(db) == [], what=f"run {run_id} to be rung")
    finally:
        sweeper.stop()
    assert "the disk is full" in caplog.text
    with db.write() as session:
        assert queue.acquire_named_lease(session, LEASE, "somebody else", 10.0)


def test_a_nudge_sweeps_before_its_time(valkey, bells, db, desk, settings):
    from dataclasses import replace

    sweeper = Sweeper(db, valkey.url, replace(settings, sweep_s=3600.0))
    sweeper.start()
    try:
        with_lease = wait_until(lambda: _lease_taken(db), what="the first sweep")
        assert with_lease
        desk.submit("a")
        sweeper.nudge()
        wait_until(lambda: len(bells()) == 1, what="the doorbell")
    finally:
        sweeper.stop()


def _lease_taken(db):
    with db.write() as session:
        return not queue.acquire_named_lease(session, LEASE, "probe", -1.0)
