"""A real Celery worker process, a real Valkey, a real database and real runner processes, killed in every way."""

import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from core.store import queue
from tests.worker.ports import free_port
from tests.worker.processes import gone
from tests.worker.waiting import wait_until
from worker.embedded import EmbeddedValkey
from worker.launch import settings_environment
from worker.sweeper import Sweeper

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


@pytest.fixture
def service(settings, db):
    """Settings of a service whose leases expire soon, with its broker and its sweeper running."""
    broker = EmbeddedValkey(settings.home, free_port())
    broker.start()
    quick = replace(settings, broker_url=broker.url, lease_ttl_s=6.0, heartbeat_s=0.5)
    sweeper = Sweeper(db, broker.url, quick)
    sweeper.start()
    yield quick, broker, sweeper
    sweeper.stop()
    broker.stop()


@contextmanager
def worker(settings):
    """A worker process in its own session; what is left of its tree is killed at the end."""
    log = (settings.home / "worker.log").open("ab")
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "tests/worker/worker_with_fake_runner.py")],
        env=os.environ | settings_environment(settings) | {"PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        tree = [process.pid, *_descendants(process.pid)]
        for pid in tree:
            if not gone(pid):
                os.kill(pid, signal.SIGKILL)
        process.wait(30)
        log.close()
        # Shown by pytest when the test fails.
        for path in [settings.home / "worker.log", *settings.home.glob("runs/*/logs/*.log")]:
            sys.stdout.write(f"--- {path.name}\n{path.read_text()}")


def _descendants(pid):
    try:
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def pool_process(process):
    """The prefork child that supervises runs: the worker's own child, not in the runner's session."""
    return psutil.Process(process.pid).children()[0].pid


def begun(desk, run_id, attempt=1):
    return wait_until(lambda: desk.started(run_id)[attempt - 1 :], within=60, what=f"attempt {attempt} of {run_id}")[0]


def ends(desk, run_id, state="succeeded"):
    wait_until(lambda: desk.state(run_id) == state, within=60, what=f"run {run_id} to be {state}")


def finished_once(desk, run_id):
    return [line for line in desk.journal(run_id) if line.endswith(" succeeded")]


def live_workers(db):
    with db.read() as session:
        return queue.live_workers(session, 60.0)


def test_a_doorbell_leads_to_a_finished_run_and_the_worker_shows_itself(service, desk, db):
    settings, _, sweeper = service
    with worker(settings) as process:
        (row,) = wait_until(lambda: [row for row in live_workers(db) if row.heartbeat_at > row.started_at], within=60)
        assert row.pid == process.pid
        assert row.device["kind"] == "cpu"

        run_id = desk.submit("obey")
        sweeper.nudge()
        begun(desk, run_id)
        before = live_workers(db)[0].heartbeat_at
        # Busy or not, the worker's heart goes on, and its row names the run.
        wait_until(lambda: live_workers(db)[0].heartbeat_at > before, what="a heartbeat while busy")
        assert live_workers(db)[0].current_run_id == run_id
        desk.cancel(run_id)
        ends(desk, run_id, "cancelled")

        second = desk.submit("finish")
        sweeper.nudge()
        ends(desk, second)
        assert len(desk.attempts(second)) == 1

        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert live_workers(db) == []


@pytest.mark.faults
@pytest.mark.parametrize("victim", ["parent", "pool"])
def test_a_killed_worker_ends_its_runner_and_another_worker_finishes_the_run_once(service, desk, victim):
    settings, _, sweeper = service
    with worker(settings) as first:
        run_id = desk.submit("hold_first")
        sweeper.nudge()
        runner = begun(desk, run_id)

        os.kill(first.pid if victim == "parent" else pool_process(first), signal.SIGKILL)

        wait_until(lambda: gone(runner), what="the runner to end with its supervisor")
        if victim == "parent":
            with worker(settings):
                ends(desk, run_id)
        else:
            # Celery replaces the pool process, which answers the next doorbell.
            ends(desk, run_id)
    assert [attempt.state for attempt in desk.attempts(run_id)] == ["interrupted", "finished"]
    assert len(finished_once(desk, run_id)) == 1


@pytest.mark.faults
def test_a_killed_broker_loses_no_queued_run(service, desk):
    settings, broker, sweeper = service
    with worker(settings):
        held = desk.submit("obey_first")
        sweeper.nudge()
        begun(desk, held)
        waiting = [desk.submit(f"finish {name}") for name in "abc"]
        sweeper.nudge()

        os.kill(broker.pid, signal.SIGKILL)
        os.waitpid(broker.pid, 0)
        late = desk.submit("finish late")
        sweeper.nudge()
        again = EmbeddedValkey(settings.home, broker.port)
        again.start()
        try:
            desk.cancel(held)
            ends(desk, held, "cancelled")
            for run_id in [*waiting, late]:
                ends(desk, run_id)
                assert len(finished_once(desk, run_id)) == 1
                assert len(desk.attempts(run_id)) == 1
            # The queue still works after the outage, for a worker that was idle meanwhile.
            after = desk.submit("finish after")
            sweeper.nudge()
            ends(desk, after)
        finally:
            again.stop()


@pytest.mark.faults
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_stopping_a_worker_drains_its_run_and_leaves_nothing_behind(service, desk, db, how):
    settings, _, sweeper = service
    with worker(settings) as process:
        run_id = desk.submit("obey_first", max_attempts=1)
        sweeper.nudge()
        runner = begun(desk, run_id)
        pool = pool_process(process)

        process.send_signal(how)

        process.wait(60)
        assert gone(runner)
        assert gone(pool)
    assert "1 asked drain" in desk.journal(run_id)
    assert desk.state(run_id) == "queued"
    assert live_workers(db) == []
    with worker(settings):
        ends(desk, run_id)
    assert [attempt.state for attempt in desk.attempts(run_id)] == ["interrupted", "finished"]


@pytest.mark.faults
def test_a_signal_to_the_whole_group_drains_too(service, desk):
    settings, _, sweeper = service
    with worker(settings) as process:
        run_id = desk.submit("obey_first")
        sweeper.nudge()
        begun(desk, run_id)

        os.killpg(process.pid, signal.SIGTERM)

        process.wait(60)
    assert "1 asked drain" in desk.journal(run_id)
    assert desk.state(run_id) == "queued"


LAUNCH = """
import sys, threading
from pathlib import Path
from core.settings import Settings
from worker.launch import start_worker
print(start_worker(Settings.from_env(), Path(sys.argv[1])).pid, flush=True)
threading.Event().wait()
"""


@pytest.mark.faults
def test_a_worker_follows_the_process_that_started_it_even_without_a_broker(settings, db, tmp_path):
    launcher = subprocess.Popen(
        [sys.executable, "-c", LAUNCH, str(tmp_path / "worker.log")],
        env=os.environ | settings_environment(settings) | {"PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE,
    )  # fmt: skip
    pid = int(launcher.stdout.readline())
    wait_until(lambda: live_workers(db), within=60, what="the worker to register")
    log = tmp_path / "worker.log"
    wait_until(lambda: b"Cannot connect" in log.read_bytes(), within=60, what="Celery to look for its broker")

    launcher.kill()
    launcher.wait(30)
    launcher.stdout.close()

    wait_until(lambda: gone(pid), what="the worker to end")
    assert live_workers(db) == []
