"""One attempt supervised with real processes: outcomes, requests, crashes, lost leases and nothing left behind."""

import os
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from core.store import queue
from tests.worker.processes import gone
from tests.worker.waiting import wait_until
from tests.worker.worker_with_fake_runner import command
from worker.node import Node
from worker.supervisor import Ending, Order, Timing, supervise

QUICK = Timing(lease_ttl_s=20.0, heartbeat_s=0.2, poll_s=0.05)


@pytest.fixture
def node(settings):
    return Node.register(settings, command)


class Supervision(threading.Thread):
    """Claims one run and supervises it in a thread, so that the test can act meanwhile."""

    def __init__(self, node, argv, timing):
        super().__init__(daemon=True)
        self.node, self.timing = node, timing
        self.claim, claimed_at = node.claim()
        self.order = Order(
            claim=self.claim,
            claimed_at=claimed_at,
            command=argv(self.claim),
            env=node.runner_env(os.environ),
            log_file=node.settings.log_file(self.claim.run_id, self.claim.attempt),
        )
        self.ending = None
        self.start()

    def run(self):
        self.ending = supervise(self.order, self.node.db, self.timing, self.node.drain)

    def result(self):
        self.join(60)
        assert not self.is_alive(), "supervision did not end"
        return self.ending


def bare(node, behaviour, timing=QUICK):
    """Supervise the next run with a bare runner, which knows no store."""
    script = Path(__file__).with_name("bare_runner.py")

    def argv(claim):
        journal = node.settings.home / f"journal-{claim.run_id}"
        return [sys.executable, "-S", str(script), behaviour, str(journal), str(claim.attempt)]

    return Supervision(node, argv, timing)


def begun(desk, run_id):
    return wait_until(lambda: desk.started(run_id), what="the runner to begin")[-1]


def child_of(desk, run_id):
    lines = wait_until(lambda: [line for line in desk.journal(run_id) if line.startswith("child")])
    return int(lines[0].split()[1])


def test_a_runner_that_finishes_records_its_own_outcome(node, desk):
    run_id = desk.submit("finish")

    supervision = Supervision(node, command, QUICK)

    assert supervision.result() == Ending.RECORDED
    run, (attempt,) = desk.run(run_id), desk.attempts(run_id)
    assert (run.state, run.outcome_reason) == ("succeeded", "all steps done")
    assert attempt.state == "finished"
    assert attempt.device["kind"] == "cpu"
    assert attempt.runner_pid == desk.started(run_id)[0]
    assert attempt.versions["python"] == sys.version.split()[0]
    assert "all steps done" in node.settings.log_file(run_id, 1).read_text()
    assert supervision.order.env["CUDA_VISIBLE_DEVICES"] == ""


@pytest.mark.parametrize(("ask", "state", "word"), [("cancel", "cancelled", "cancel"), ("pause", "paused", "pause")])
def test_a_request_reaches_the_runner_and_ends_the_run(node, desk, ask, state, word):
    run_id = desk.submit("obey")
    supervision = Supervision(node, command, QUICK)
    begun(desk, run_id)

    getattr(desk, ask)(run_id)

    assert supervision.result() == Ending.RECORDED
    assert desk.state(run_id) == state
    assert f"1 asked {word}" in desk.journal(run_id)


def test_a_drain_lets_the_runner_checkpoint_and_queues_the_run_again_without_counting(node, desk):
    run_id = desk.submit("obey", max_attempts=1)
    supervision = Supervision(node, command, QUICK)
    begun(desk, run_id)

    node.drain.request()

    assert supervision.result() == Ending.RECORDED
    assert desk.state(run_id) == "queued"
    assert "1 asked drain" in desk.journal(run_id)
    assert [attempt.state for attempt in desk.attempts(run_id)] == ["interrupted"]


def test_a_worker_that_drains_claims_nothing_more(node, desk):
    run_id = desk.submit("finish")
    node.drain.request()

    assert node.work_off() == []
    assert desk.state(run_id) == "queued"


def test_each_request_is_relayed_once(node, desk):
    run_id = desk.submit("any")
    supervision = bare(node, "echo", replace(QUICK, drain_grace_s=1.0))
    begun(desk, run_id)
    desk.pause(run_id)
    wait_until(lambda: "1 asked pause" in desk.journal(run_id))
    desk.cancel(run_id)
    wait_until(lambda: "1 asked cancel" in desk.journal(run_id))
    node.drain.request()
    supervision.result()

    assert [line for line in desk.journal(run_id) if "asked" in line] == [
        "1 asked pause", "1 asked cancel", "1 asked drain",
    ]  # fmt: skip


def test_a_runner_that_ignores_the_drain_is_killed_with_its_group_and_its_run_queued(node, desk):
    run_id = desk.submit("any", max_attempts=1)
    supervision = bare(node, "parent_then_hang", replace(QUICK, drain_grace_s=0.2))
    pid, child = begun(desk, run_id), child_of(desk, run_id)

    node.drain.request()

    assert supervision.result() == Ending.INTERRUPTED
    assert desk.state(run_id) == "queued"
    assert gone(pid)
    wait_until(lambda: gone(child), what="the runner's child to end")


@pytest.mark.parametrize(("ask", "state"), [("cancel", "cancelled"), ("pause", "paused")])
def test_a_stuck_runner_cannot_prevent_a_cancel_or_a_pause(node, desk, ask, state):
    run_id = desk.submit("any")
    supervision = bare(node, "deaf", replace(QUICK, stop_grace_s=0.2))
    begun(desk, run_id)

    getattr(desk, ask)(run_id)

    assert supervision.result() == Ending.INTERRUPTED
    assert desk.state(run_id) == state


def test_a_crash_queues_the_run_again_and_the_last_one_fails_it_with_the_log(node, desk):
    run_id = desk.submit("any", max_attempts=2)

    assert bare(node, "crash").result() == Ending.INTERRUPTED
    assert desk.state(run_id) == "queued"
    assert bare(node, "crash").result() == Ending.INTERRUPTED

    run = desk.run(run_id)
    assert run.state == "failed"
    assert (run.error["category"], run.error["code"]) == ("system", "runner_crashed")
    assert "exit status 1" in run.error["message"]
    assert "the tensor fell over" in run.error["log_tail"]
    assert len(desk.attempts(run_id)) == 2


def test_an_exception_that_ended_the_runner_is_named_by_the_attempt_and_the_run(node, desk):
    run_id = desk.submit("any", max_attempts=1)

    assert bare(node, "disk_full").result() == Ending.INTERRUPTED

    said = "exit status 70; its log ends: OSError: [Errno 28] No space left on device"
    assert said in desk.run(run_id).error["message"]
    assert said in desk.attempts(run_id)[0].end_reason


def test_a_killed_runner_is_a_crash_that_names_the_signal(node, desk):
    run_id = desk.submit("any")
    supervision = bare(node, "deaf")
    pid = begun(desk, run_id)

    os.kill(pid, signal.SIGKILL)

    assert supervision.result() == Ending.INTERRUPTED
    assert desk.state(run_id) == "queued"
    assert "SIGKILL" in desk.attempts(run_id)[0].end_reason


def test_a_runner_that_ends_well_but_records_nothing_is_found_out(node, desk):
    run_id = desk.submit("any", max_attempts=1)

    assert bare(node, "say_nothing").result() == Ending.INTERRUPTED
    assert desk.run(run_id).error["code"] == "no_outcome"


def test_a_runner_that_calls_itself_stale_decides_nothing(node, desk):
    run_id = desk.submit("any")

    assert bare(node, "stale").result() == Ending.LOST
    assert desk.state(run_id) == "running"


def test_a_runner_that_cannot_start_interrupts_the_attempt(node, desk):
    run_id = desk.submit("any", max_attempts=1)

    assert Supervision(node, lambda _claim: ["/nonexistent/python"], QUICK).result() == Ending.INTERRUPTED
    assert desk.run(run_id).error["code"] == "runner_not_started"


def test_what_a_runner_leaves_behind_is_killed(node, desk):
    run_id = desk.submit("any")

    bare(node, "parent").result()

    child = child_of(desk, run_id)
    wait_until(lambda: gone(child), what="the left process to end")


def test_a_run_taken_by_somebody_else_kills_the_runner_at_once_and_is_left_alone(node, desk, db):
    run_id = desk.submit("any")
    supervision = bare(node, "deaf")
    pid = begun(desk, run_id)

    with db.write() as session:
        queue.interrupt(session, supervision.claim.fence, reason="taken back by the test")
        other = queue.claim(session, worker_id=node.worker_id, device=node.device.as_dict(), ttl=60.0)

    assert supervision.result() == Ending.LOST
    assert gone(pid)
    run = desk.run(run_id)
    assert (run.state, run.attempt, run.fence) == ("running", 2, other.fence.token)


def test_a_lease_that_cannot_be_extended_in_time_kills_the_runner(node, desk, monkeypatch):
    desk.submit("any")
    answered = threading.Event()
    real = queue.heartbeat

    def silent_database(*args, **kwargs):
        # The heartbeat hangs, as with a database that does not answer: the deadline alone must act.
        answered.wait(30)
        return real(*args, **kwargs)

    monkeypatch.setattr(queue, "heartbeat", silent_database)
    began = time.monotonic()
    supervision = bare(node, "deaf", replace(QUICK, lease_ttl_s=1.0))

    assert supervision.result() == Ending.LOST
    assert time.monotonic() - began >= 0.9
    answered.set()


def test_an_outcome_recorded_by_a_runner_that_then_hangs_stands(node, desk, db):
    run_id = desk.submit("any")
    supervision = bare(node, "deaf", replace(QUICK, exit_grace_s=0.2))
    pid = begun(desk, run_id)

    with db.write() as session:
        queue.finish(session, supervision.claim.fence, state="succeeded", reason="recorded")

    assert supervision.result() == Ending.RECORDED
    assert gone(pid)
    assert desk.state(run_id) == "succeeded"


def test_a_runner_that_finds_the_card_taken_does_not_count(node, desk):
    run_id = desk.submit("any", max_attempts=1)

    assert bare(node, "busy").result() == Ending.BUSY
    assert desk.state(run_id) == "queued"
    (attempt,) = desk.attempts(run_id)
    assert (attempt.state, attempt.counted) == ("interrupted", False)
