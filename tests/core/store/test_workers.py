"""Workers in the store: who is alive, for whom a doorbell rings, and who may claim what."""

import pytest
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from core.store import queue, runs
from core.store.database import Database, now
from core.store.models import Outbox, Run, Worker
from core.store.states import RunState

WORKER = "0" * 12
CUDA, CPU = {"kind": "cuda"}, {"kind": "cpu"}


def _register(session: Session, device: dict[str, str] | None = None) -> str:
    return queue.register_worker(session, hostname="h", pid=1, device=device)


def _all_silent(db: Database) -> None:
    with db.write() as session:
        queue.outbox_sent(session, [row.id for row in queue.outbox_pending(session, 1000)])
        session.execute(update(Run).values(rung_at=now(session) - 61))


def test_busy_and_unready_workers_are_not_rung_for_and_an_idle_one_once(db: Database, make_run) -> None:
    made = [make_run().id for _ in range(6)]
    with db.write() as session:
        busy, broken = _register(session), _register(session)
        assert queue.claim(session, worker_id=busy, device=None, ttl=600) is not None
        queue.mark_unready(session, broken, "the driver is gone")
    _all_silent(db)
    with db.write() as session:
        assert queue.sweep(session).rung == []
        _register(session)
        _register(session)
        assert queue.sweep(session).rung == made[1:3]
        assert queue.sweep(session).rung == []  # their doorbells are on their way
        queue.outbox_sent(session, [row.id for row in queue.outbox_pending(session)])
        assert queue.sweep(session).rung == []


def test_an_idle_worker_is_rung_for_a_run_it_may_claim(db: Database, make_run) -> None:
    make_run(recipe={"device": CUDA}, priority=9)
    mine = make_run(recipe={"device": CPU})
    with db.write() as session:
        _register(session, CPU)
    _all_silent(db)
    with db.write() as session:
        assert queue.sweep(session).rung == [mine.id]


@pytest.mark.parametrize(
    ("device", "expected"),
    [(None, ["any"]), (CPU, ["cpu", "any"]), (CUDA, ["cuda", "any"])],
    ids=["none", "cpu", "cuda"],
)
def test_a_worker_claims_only_runs_for_its_kind_of_device(db: Database, make_run, device, expected: list[str]) -> None:
    names = {
        make_run(recipe={"device": CUDA}).id: "cuda",
        make_run(recipe={"device": CPU}).id: "cpu",
        make_run().id: "any",
    }
    taken = []
    with db.write() as session:
        while (found := queue.claim(session, worker_id=WORKER, device=device, ttl=60)) is not None:
            taken.append(names[found.run_id])
    assert taken == expected


def test_an_unready_worker_gets_nothing(db: Database, make_run) -> None:
    make_run()
    with db.write() as session:
        broken, well = _register(session), _register(session)
        queue.mark_unready(session, broken, "the disk is full")
        assert queue.claim(session, worker_id=broken, device=None, ttl=60) is None
        assert queue.claim(session, worker_id=well, device=None, ttl=60) is not None


@pytest.mark.parametrize("ending", ["swept", "finished", "interrupted", "paused"])
def test_a_worker_whose_run_ended_is_no_longer_shown_with_it(db: Database, make_run, ending: str) -> None:
    run = make_run()
    with db.write() as session:
        worker = _register(session)
        taken = queue.claim(session, worker_id=worker, device=None, ttl=-1.0)
        assert taken is not None
        match ending:
            case "swept":
                assert queue.sweep(session).expired == [run.id]
            case "finished":
                queue.finish(session, taken.fence, state=RunState.SUCCEEDED)
            case "interrupted":
                queue.interrupt(session, taken.fence, reason="test")
            case _:
                runs.request_pause(session, run.id)
                queue.pause_done(session, taken.fence)
    with db.read() as session:
        assert [row.current_run_id for row in queue.live_workers(session, 60)] == [None]


def test_a_heartbeat_leaves_the_workers_run_alone(db: Database, make_run) -> None:
    run = make_run()
    with db.write() as session:
        worker = _register(session)
        queue.claim(session, worker_id=worker, device=None, ttl=60)
        queue.worker_heartbeat(session, worker)
    with db.read() as session:
        assert [row.current_run_id for row in queue.live_workers(session, 60)] == [run.id]


def test_workers_dead_for_a_day_are_forgotten(db: Database) -> None:
    with db.write() as session:
        dead, late = _register(session), _register(session)
        for worker, age in ((dead, 86_460), (late, 86_340)):
            session.execute(update(Worker).where(Worker.id == worker).values(heartbeat_at=now(session) - age))
        queue.sweep(session)
        assert session.scalars(select(Worker.id)).all() == [late]


def test_doorbells_that_could_not_be_sent_stay_pending(db: Database, make_run) -> None:
    make_run()
    with db.write() as session:
        (bell,) = queue.outbox_pending(session)
        queue.outbox_failed(session, [bell.id])
    with db.read() as session:
        (bell,) = queue.outbox_pending(session)
    assert (bell.tries, bell.sent_at) == (1, None)


def test_old_doorbells_are_forgotten(db: Database, make_run) -> None:
    make_run()
    with db.write() as session:
        queue.outbox_sent(session, [row.id for row in queue.outbox_pending(session)])
        session.execute(update(Outbox).values(sent_at=now(session) - 90_000))
        queue.sweep(session)
        assert session.scalars(select(Outbox)).all() == []


def test_workers_are_alive_while_their_heartbeat_is_fresh(db: Database, make_run, claim) -> None:
    with db.write() as session:
        one = queue.register_worker(session, hostname="a", pid=1, device={"name": "cpu"})
        queue.register_worker(session, hostname="b", pid=2, device=None)
    with db.write() as session:
        assert queue.worker_heartbeat(session, one)
        assert not queue.worker_heartbeat(session, "f" * 12)
        assert [worker.hostname for worker in queue.live_workers(session, 60)] == ["a", "b"]
        assert queue.live_workers(session, -60) == []
    with db.write() as session:
        queue.remove_worker(session, one)
        assert [worker.hostname for worker in queue.live_workers(session, 60)] == ["b"]


def test_a_named_lease_has_one_owner_until_it_expires(db: Database) -> None:
    with db.write() as session:
        assert queue.acquire_named_lease(session, "sweeper", "a", 60)
        assert not queue.acquire_named_lease(session, "sweeper", "b", 60)
        assert queue.acquire_named_lease(session, "sweeper", "a", -1)
    with db.write() as session:
        assert queue.acquire_named_lease(session, "sweeper", "b", 60)
        queue.release_named_lease(session, "sweeper", "a")
        assert not queue.acquire_named_lease(session, "sweeper", "a", 60)
        queue.release_named_lease(session, "sweeper", "b")
        assert queue.acquire_named_lease(session, "sweeper", "a", 60)
