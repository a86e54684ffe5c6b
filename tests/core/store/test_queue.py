"""Claims, leases, fences, interruptions, the sweep and the doorbells."""

import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import insert, select, update

from core.store import checkpoints, evaluations, events, metrics, queue, runs
from core.store.database import Database, Fence, now
from core.store.errors import IllegalTransition, StaleAttempt
from core.store.models import Attempt, Metric, Outbox, Run
from core.store.states import AttemptState, RunState

WORKER = "0" * 12


def _state(db: Database, run_id: str) -> str:
    with db.read() as session:
        return runs.get(session, run_id).state


def _finish(db: Database, claim: queue.Claim, state: str = "succeeded") -> None:
    with db.fenced(claim.fence) as session:
        queue.finish(session, claim.fence, state=RunState(state))


def _checkpoint(db: Database, claim: queue.Claim, step: int) -> None:
    with db.fenced(claim.fence) as session:
        checkpoints.add(
            session, claim.fence, step=step, path=f"a{claim.attempt}-s{step}", sha256=f"{step:064d}", files={}, bytes=1,
            has_optimizer=True, provenance={},
        )  # fmt: skip


def test_highest_priority_first_then_oldest(make_run, claim) -> None:
    low, first, second = make_run(), make_run(priority=5), make_run(priority=5)
    assert [claim().run_id for _ in range(3)] == [first.id, second.id, low.id]


def test_nothing_to_claim_is_none(db: Database) -> None:
    with db.write() as session:
        assert queue.claim(session, worker_id=WORKER, device=None, ttl=60) is None


def test_a_claim_is_recorded_as_an_attempt_with_its_device(db: Database, held: queue.Claim) -> None:
    with db.read() as session:
        run = runs.get(session, held.run_id)
        (attempt,) = runs.attempts(session, held.run_id)
    assert (run.state, run.attempt, run.lease_worker) == ("running", 1, WORKER)
    assert run.lease_expires_at == pytest.approx(attempt.started_at + 60, abs=5)
    assert (attempt.number, attempt.state, attempt.device) == (1, AttemptState.CLAIMED, {"name": "cpu"})


def test_a_run_waits_until_all_runs_it_comes_after_succeeded(db: Database, make_run, claim) -> None:
    first, second = make_run(), make_run()
    last = make_run(after=[first.id, second.id], priority=9)
    one, two = claim(), claim()
    with db.write() as session:
        assert queue.claim(session, worker_id=WORKER, device=None, ttl=60) is None
    _finish(db, one)
    with db.write() as session:
        assert queue.claim(session, worker_id=WORKER, device=None, ttl=60) is None
        queue.outbox_sent(session, [row.id for row in queue.outbox_pending(session)])
    _finish(db, two)
    with db.read() as session:
        assert [row.run_id for row in queue.outbox_pending(session)] == [last.id]
    assert claim().run_id == last.id


def test_concurrent_claimers_never_get_the_same_run(db: Database, make_run) -> None:
    made = {make_run().id for _ in range(12)}
    barrier = threading.Barrier(4)

    def take(number: int) -> list[str]:
        barrier.wait(timeout=30)
        taken = []
        while len(taken) < 12:
            with db.write() as session:
                found = queue.claim(session, worker_id=f"{number:012d}", device=None, ttl=60)
            if found is None:
                break
            taken.append(found.run_id)
        return taken

    with ThreadPoolExecutor(4) as pool:
        taken = [run_id for result in pool.map(take, range(4)) for run_id in result]
    assert len(taken) == 12
    assert set(taken) == made


def test_a_claimer_passes_over_the_run_another_is_claiming(db: Database, make_run) -> None:
    first, second = make_run(), make_run()
    if db.is_sqlite:
        return  # one writer at a time: the second claimer begins when the first has committed
    with db.write() as one, db.write() as two:
        got = [queue.claim(session, worker_id=WORKER, device=None, ttl=60) for session in (one, two)]
    assert [claim and claim.run_id for claim in got] == [first.id, second.id]


CLAIM_ALL = """
from core.store import queue
from core.store.database import Database
database = Database({url!r})
while True:
    with database.write() as session:
        found = queue.claim(session, worker_id="1" * 12, device=None, ttl=60)
    if found is None:
        break
    print(found.run_id)
"""


def test_claiming_processes_never_get_the_same_run(url: str, make_run) -> None:
    made = sorted(make_run().id for _ in range(20))
    command = [sys.executable, "-c", CLAIM_ALL.format(url=url)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    taken = [run_id for process in processes for run_id in process.communicate(timeout=120)[0].split()]
    assert sorted(taken) == made


def test_the_fence_strictly_increases(db: Database, make_run, claim) -> None:
    make_run(max_attempts=10)
    tokens = []
    for _ in range(4):
        taken = claim()
        tokens.append((taken.fence.token, taken.attempt))
        with db.fenced(taken.fence) as session:
            queue.interrupt(session, taken.fence, reason="test", counted=False)
    assert tokens == [(1, 1), (2, 2), (3, 3), (4, 4)]


@pytest.mark.parametrize("ending", ["finished", "interrupted", "swept", "swept_and_claimed", "wrong_token", "deleted"])
def test_a_stale_fence_raises_and_changes_nothing(db: Database, make_run, claim, ending: str) -> None:
    make_run()
    taken = claim(ttl=-1.0 if ending.startswith("swept") else 60.0)
    fence = taken.fence
    match ending:
        case "finished":
            _finish(db, taken)
        case "deleted":
            _finish(db, taken)
            with db.write() as session:
                runs.delete(session, taken.run_id)
        case "interrupted":
            with db.fenced(fence) as session:
                queue.interrupt(session, fence, reason="test")
        case "wrong_token":
            fence = Fence(fence.run_id, fence.attempt, fence.token + 1)
        case _:
            with db.write() as session:
                assert queue.sweep(session).expired == [taken.run_id]
            if ending == "swept_and_claimed":
                assert claim().fence.token == fence.token + 1
    writes: list[Callable] = [
        lambda s: metrics.record(s, fence, 1, {"loss": 1.0}),
        lambda s: metrics.supersede_after(s, fence, 0),
        lambda s: runs.progress(s, fence, phase="train", done=1, total=2, unit="step", step=1),
        lambda s: queue.heartbeat(s, fence, 60),
        lambda s: queue.finish(s, fence, state=RunState.FAILED),
        lambda s: queue.interrupt(s, fence, reason="x"),
        lambda s: queue.pause_done(s, fence),
        lambda s: queue.runner_started(s, fence, pid=1),
    ]
    before = _snapshot(db)
    with pytest.raises(StaleAttempt), db.fenced(fence) as session:
        session.execute(insert(Metric))  # never reached
    for write in writes:
        with pytest.raises(StaleAttempt, match="nothing was written"), db.write() as session:
            write(session)
    assert _snapshot(db) == before


def _snapshot(db: Database) -> list[list[tuple]]:
    with db.read() as session:
        return [
            [tuple(row) for row in session.execute(select(model.__table__))] for model in (Run, Attempt, Metric, Outbox)
        ]


def test_a_fence_given_up_in_a_unit_is_stale_in_the_same_unit(db: Database, held: queue.Claim) -> None:
    with db.fenced(held.fence) as session:
        queue.finish(session, held.fence, state=RunState.SUCCEEDED)
        with pytest.raises(StaleAttempt):
            metrics.record(session, held.fence, 1, {"loss": 1.0})
    assert _state(db, held.run_id) == "succeeded"


def test_an_expired_lease_that_nobody_took_back_is_extended_by_a_heartbeat(db: Database, make_run, claim) -> None:
    make_run()
    taken = claim(ttl=-1.0)
    with db.write() as session:
        assert queue.heartbeat(session, taken.fence, 60) == queue.Signals(cancel=False, pause=False)
        assert queue.sweep(session).expired == []


def test_a_heartbeat_brings_the_owners_wish(db: Database, held: queue.Claim) -> None:
    with db.write() as session:
        runs.request_pause(session, held.run_id)
        assert queue.heartbeat(session, held.fence, 60) == queue.Signals(cancel=False, pause=True)
        runs.request_cancel(session, held.run_id)
        assert queue.heartbeat(session, held.fence, 60) == queue.Signals(cancel=True, pause=False)


def test_finishing_takes_a_final_state(db: Database, held: queue.Claim) -> None:
    with pytest.raises(IllegalTransition), db.fenced(held.fence) as session:
        queue.finish(session, held.fence, state=RunState.PAUSED)
    error = {"category": "user", "code": "x", "message": "y", "log_tail": "z"}
    with db.fenced(held.fence) as session:
        queue.finish(session, held.fence, state=RunState.FAILED, reason="because", error=error)
    with db.read() as session:
        run = runs.get(session, held.run_id)
        (attempt,) = runs.attempts(session, held.run_id)
    assert (run.state, run.error, run.outcome_reason, run.lease_expires_at) == ("failed", error, "because", None)
    assert run.finished_at is not None
    assert (attempt.state, attempt.end_reason) == ("finished", "because")


def test_attempts_without_a_new_checkpoint_are_used_up(db: Database, make_run, claim) -> None:
    run = make_run(max_attempts=3)
    states = []
    for _ in range(3):
        taken = claim()
        _checkpoint(db, taken, 0)  # every attempt from scratch reaches step 0, so it is no progress
        with db.fenced(taken.fence) as session:
            states.append(queue.interrupt(session, taken.fence, reason="runner died").state)
    assert states == ["queued", "queued", "failed"]
    with db.read() as session:
        error = runs.get(session, run.id).error
    assert (error["category"], error["code"]) == ("system", "attempts_exhausted")
    assert "runner died" in error["message"]


def test_a_new_checkpoint_starts_the_count_anew(db: Database, make_run, claim) -> None:
    make_run(max_attempts=2)
    states = []
    for step in (None, 10, None, 20, 20, None):
        taken = claim()
        if step is not None:
            _checkpoint(db, taken, step)
        with db.fenced(taken.fence) as session:
            states.append(queue.interrupt(session, taken.fence, reason="lost").state)
    # failures in a row: 1, 0 (step 10), 1, 0 (step 20), 1 (20 again is not new), 2
    assert states == ["queued"] * 5 + ["failed"]


def test_an_evaluation_that_no_attempt_repeats_starts_the_count_anew(db: Database, make_run, claim) -> None:
    make_run(max_attempts=2)
    states = []
    for purpose in (None, "eval", None, "look", None):
        taken = claim()
        with db.fenced(taken.fence) as session:
            if purpose is not None:
                one = evaluations.start(
                    session, taken.fence, step=None, purpose=purpose, model_ref="m", suite="s", mode="greedy", n_items=1
                )
                evaluations.finish(session, taken.fence, one, accuracy=1.0)
            states.append(queue.interrupt(session, taken.fence, reason="lost").state)
        if states[-1] == "failed":
            break
    # failures in a row: 1, 0 (an eval run's evaluation), 1, 2 (a look is asked again by whoever replays its step)
    assert states == ["queued"] * 3 + ["failed"]


def test_a_run_cancelled_while_it_was_letting_go_is_cancelled(db: Database, held: queue.Claim) -> None:
    with db.write() as session:
        runs.request_pause(session, held.run_id)
        runs.request_cancel(session, held.run_id)
    with db.fenced(held.fence) as session:
        assert queue.pause_done(session, held.fence).state == "cancelled"


def test_a_drain_uses_up_no_attempt(db: Database, make_run, claim) -> None:
    make_run(max_attempts=1)
    for _ in range(3):
        taken = claim()
        with db.fenced(taken.fence) as session:
            assert queue.interrupt(session, taken.fence, reason="drained", counted=False).state == "queued"


@pytest.mark.parametrize(("wish", "end"), [("pause", "paused"), ("cancel", "cancelled")])
def test_a_worker_lost_after_a_request_leaves_the_run_as_requested(db, make_run, claim, wish: str, end: str) -> None:
    run = make_run(max_attempts=1)
    claim(ttl=-1.0)
    with db.write() as session:
        (runs.request_pause if wish == "pause" else runs.request_cancel)(session, run.id)
        queue.sweep(session)
    assert _state(db, run.id) == end


def test_the_sweep_takes_back_only_expired_leases_and_rings(db: Database, make_run, claim) -> None:
    lost, kept = make_run(), make_run()
    claim(ttl=-1.0)
    claim(ttl=60.0)
    with db.write() as session:
        queue.outbox_sent(session, [row.id for row in queue.outbox_pending(session)])
        report = queue.sweep(session)
        assert report == queue.SweepReport(expired=[lost.id], rung=[], orphaned=[])
        assert [row.run_id for row in queue.outbox_pending(session)] == [lost.id]
        (attempt,) = runs.attempts(session, lost.id)
    assert (attempt.state, _state(db, lost.id), _state(db, kept.id)) == ("interrupted", "queued", "running")


def test_a_queued_run_nobody_rang_for_is_rung_again_once(db: Database, make_run) -> None:
    run = make_run()
    with db.write() as session:
        queue.register_worker(session, hostname="idle", pid=1, device=None)
        assert queue.sweep(session, ring_after_s=0.0).rung == []  # its first doorbell still waits to be sent
        queue.outbox_sent(session, [row.id for row in queue.outbox_pending(session)])
        assert queue.sweep(session, ring_after_s=60.0).rung == []  # rung just now
        session.execute(update(Run).values(rung_at=now(session) - 61))
    with db.write() as session:
        assert queue.sweep(session, ring_after_s=60.0).rung == [run.id]
        assert queue.sweep(session, ring_after_s=60.0).rung == []
        assert [row.run_id for row in queue.outbox_pending(session)] == [run.id]


def _end(db: Database, run_id: str, how: str) -> None:
    with db.write() as session:
        if how == "cancelled while queued":
            runs.request_cancel(session, run_id)
            return
        taken = queue.claim(session, worker_id=WORKER, device=None, ttl=60)
        assert taken is not None
        assert taken.run_id == run_id
        queue.finish(session, taken.fence, state=RunState(how))


@pytest.mark.parametrize("how", ["failed", "cancelled", "damage_stopped", "cancelled while queued"])
def test_runs_that_come_after_one_without_success_fail_at_once(db: Database, make_run, how: str) -> None:
    first, other = make_run(), make_run()
    second = make_run(after=[other.id, first.id])
    third, unrelated = make_run(after=[second.id]), make_run(after=[other.id])
    _end(db, first.id, how)
    late = make_run(after=[third.id])
    for run, cause in ((second, first), (third, second), (late, third)):
        with db.read() as session:
            found = runs.get(session, run.id)
            story = [event.type for event in events.page(session, run.id).items]
        assert (found.state, found.error["category"], found.error["code"]) == ("failed", "user", "dependency_failed")
        assert cause.id in found.error["message"]
        assert found.finished_at is not None
        assert story == ["run_created", "state"]
    assert _state(db, unrelated.id) == "queued"


def test_a_long_chain_of_runs_fails_to_its_end(db: Database, make_run) -> None:
    chain = [make_run().id]
    for _ in range(40):
        chain.append(make_run(after=[chain[-1]]).id)
    with db.write() as session:
        runs.request_cancel(session, chain[0])
    assert [_state(db, run_id) for run_id in chain] == ["cancelled"] + ["failed"] * 40


def test_the_sweep_finds_a_run_that_was_posted_while_the_one_before_it_ended(db: Database, make_run) -> None:
    first = make_run()
    second = make_run(after=[first.id])
    with db.write() as session:
        # What two transactions at once may leave behind on PostgreSQL: neither saw the other.
        session.execute(update(Run).where(Run.id == first.id).values(state="cancelled"))
        assert queue.sweep(session).orphaned == [second.id]
    assert _state(db, second.id) == "failed"


def test_the_runner_is_recorded_on_the_attempt(db: Database, held: queue.Claim) -> None:
    with db.fenced(held.fence) as session:
        queue.runner_started(session, held.fence, pid=77)
        queue.runner_started(session, held.fence, versions={"torch": "2"}, resumed_from_step=4)
    with db.read() as session:
        (attempt,) = runs.attempts(session, held.run_id)
    assert (attempt.state, attempt.runner_pid, attempt.versions, attempt.resumed_from_step) == (
        "running", 77, {"torch": "2"}, 4
    )  # fmt: skip


def test_events_tell_the_story_in_order(db: Database, make_run, claim) -> None:
    run = make_run()
    taken = claim()
    _checkpoint(db, taken, 3)
    _finish(db, taken)
    with db.read() as session:
        page = events.page(session, run.id, limit=2)
        rest = events.page(session, run.id, after=page.next, limit=50)
    story = [(event.type, event.attempt) for event in page.items + rest.items]
    assert story == [("run_created", None), ("attempt_claimed", 1), ("checkpoint", 1), ("state", 1)]
    assert page.has_more
    assert not rest.has_more
