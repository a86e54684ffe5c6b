"""What a runner records for each outcome, in this process; and how it guards the card and the run."""

import json
import logging
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from core.jobs import Outcome, UserError
from core.store import queue
from core.store.database import Fence
from core.store.errors import StaleAttempt
from worker import runner
from worker.control import PipeControl
from worker.exits import RunnerExit
from worker.locks import FileLock, LockBusyError
from worker.pinning import Device, PinningError

CARD = Device("cuda", "GPU-1", "card", "570", 0, 24 * 2**30, 2)


@pytest.fixture
def attempt(desk, db):
    desk.submit("any", max_attempts=1)
    with db.write() as session:
        return queue.claim(session, worker_id="a" * 12, device={"kind": "cpu"}, ttl=60.0).fence


def run(fence, settings, job):
    return runner.run_attempt(fence, settings, PipeControl(), logging.getLogger("test"), job)


@pytest.mark.parametrize("state", ["succeeded", "damage_stopped", "cancelled"])
def test_a_final_outcome_is_recorded_with_its_reason(attempt, settings, desk, state):
    assert run(attempt, settings, lambda _context: Outcome(state, "because")) == RunnerExit.RECORDED

    row = desk.run(attempt.run_id)
    assert (row.state, row.outcome_reason, row.error) == (state, "because", None)


def test_a_pause_leaves_the_run_paused(attempt, settings, desk):
    desk.pause(attempt.run_id)

    assert run(attempt, settings, lambda _context: Outcome("paused", "asked")) == RunnerExit.RECORDED
    assert desk.state(attempt.run_id) == "paused"


def test_a_drained_attempt_goes_back_to_the_queue_and_does_not_count(attempt, settings, desk):
    assert run(attempt, settings, lambda _context: Outcome("interrupted", "drained")) == RunnerExit.DRAINED
    assert desk.state(attempt.run_id) == "queued"


def test_a_failure_keeps_the_jobs_code_and_gets_the_log(attempt, settings, desk):
    log_file = settings.log_file(attempt.run_id, attempt.attempt)
    log_file.parent.mkdir(parents=True)
    log_file.write_text("line one\nline two\n")
    error = {"category": "system", "code": "short", "message": "7 of 12 steps"}

    run(attempt, settings, lambda _context: Outcome("failed", "fewer steps than asked", error))

    assert desk.run(attempt.run_id).error == error | {"log_tail": "line one\nline two"}


def test_a_users_mistake_fails_the_run_at_once(attempt, settings, desk):
    def job(_context):
        raise UserError("dataset_empty", "the dataset has no item; name another one")

    assert run(attempt, settings, job) == RunnerExit.RECORDED

    row = desk.run(attempt.run_id)
    assert row.state == "failed"
    assert (row.error["category"], row.error["code"]) == ("user", "dataset_empty")
    assert "name another one" in row.error["message"]


def test_an_unexpected_exception_is_left_to_the_supervisor(attempt, settings, desk):
    def job(_context):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(attempt, settings, job)
    assert desk.state(attempt.run_id) == "running"


def test_a_stale_attempt_never_reaches_its_job(attempt, settings):
    stale = Fence(attempt.run_id, attempt.attempt, attempt.token - 1)

    with pytest.raises(StaleAttempt):
        run(stale, settings, lambda _context: pytest.fail("the job was run"))


def test_the_job_gets_its_recipe_its_device_and_its_fence(attempt, settings, monkeypatch):
    device = Device("cpu", "cpu", "the worker's own", "", -1, 2**30, 3).as_dict()
    monkeypatch.setenv("DRIFTLINE_DEVICE", json.dumps(device))
    seen = []

    run(attempt, settings, lambda context: seen.append(context) or Outcome("succeeded", "done"))

    (context,) = seen
    assert context.recipe.kind == "eval"
    assert context.recipe.name == "any"
    assert context.device == device
    assert context.fence == attempt
    assert context.control.requested is None


def test_a_second_runner_of_one_card_waits_and_gives_up(attempt, settings, monkeypatch):
    monkeypatch.setenv("DRIFTLINE_DEVICE", json.dumps(CARD.as_dict()))
    monkeypatch.setattr(runner, "LOCK_TIMEOUT_S", 0.1)
    holder = FileLock(settings.locks_dir, "gpu-GPU-1")
    holder.acquire(0)

    with pytest.raises(LockBusyError, match="gpu-GPU-1"):
        run(attempt, settings, lambda _context: pytest.fail("the job was run"))

    holder.release()


def test_a_runner_without_its_lock_says_that_it_was_busy_and_did_not_crash(monkeypatch):
    def busy(*_):
        raise LockBusyError("gpu-GPU-1.lock is held")

    monkeypatch.setattr(runner, "run_attempt", busy)
    for name in ("start_guard", "die_with_parent", "_log_to_stderr"):
        monkeypatch.setattr(runner, name, lambda *_: None)
    monkeypatch.setattr(runner.signal, "signal", lambda *_: None)
    monkeypatch.setattr(PipeControl, "listen", lambda *_, **__: None)

    assert runner.main(["--run", "a" * 12, "--attempt", "1", "--fence", "1"]) == RunnerExit.BUSY


def test_a_card_that_others_use_is_named_in_the_log(attempt, settings, monkeypatch, caplog):
    monkeypatch.setenv("DRIFTLINE_DEVICE", json.dumps(CARD.as_dict()))
    monkeypatch.setattr(runner, "memory_in_use", lambda _device: 3 * 2**30)

    run(attempt, settings, lambda _context: Outcome("succeeded", "done"))

    assert "3.0 GiB" in caplog.text


def test_a_card_whose_memory_cannot_be_read_does_not_stop_the_run(attempt, settings, monkeypatch, caplog):
    def unreadable(_device):
        raise PinningError("NVML failed")

    monkeypatch.setenv("DRIFTLINE_DEVICE", json.dumps(CARD.as_dict()))
    monkeypatch.setattr(runner, "memory_in_use", unreadable)

    assert run(attempt, settings, lambda _context: Outcome("succeeded", "done")) == RunnerExit.RECORDED
    assert "NVML failed" in caplog.text


def test_a_lock_is_free_again_when_its_holder_lets_go(tmp_path):
    first, second = FileLock(tmp_path, "run-1"), FileLock(tmp_path, "run-1")
    first.acquire(0)
    with pytest.raises(LockBusyError):
        second.acquire(0)
    first.release()
    second.acquire(0)
    second.release()


def test_a_process_forked_from_the_holder_keeps_the_lock(tmp_path):
    first, second = FileLock(tmp_path, "run-1"), FileLock(tmp_path, "run-1")
    first.acquire(0)
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(write_end)
        os.read(read_end, 1)
        os._exit(0)
    first.release()

    with pytest.raises(LockBusyError):
        second.acquire(0)

    os.close(write_end)
    os.waitpid(child, 0)
    os.close(read_end)
    second.acquire(0)
    second.release()


def test_a_program_started_by_the_holder_does_not_keep_the_lock(tmp_path):
    first, second = FileLock(tmp_path, "run-1"), FileLock(tmp_path, "run-1")
    first.acquire(0)
    with subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE) as orphan:
        first.release()
        second.acquire(0)
        assert orphan.poll() is None
        orphan.kill()
    second.release()


@pytest.mark.parametrize("name", ["../x", "a/b", "", "a b"])
def test_a_lock_name_cannot_leave_its_folder(tmp_path, name):
    with pytest.raises(ValueError, match="lock file"):
        FileLock(tmp_path, name)


@pytest.mark.parametrize(("probe", "called"), [(True, "probe"), (False, "training")])
def test_a_probe_measures_instead_of_running(monkeypatch, probe, called):
    from core.recipes import parse_recipe
    from core.train import loop
    from core.train import probe as probing

    monkeypatch.setattr(probing, "run_probe", lambda context: Outcome("succeeded", "probe"))
    monkeypatch.setattr(loop, "run_training", lambda context: Outcome("succeeded", "training"))
    recipe = parse_recipe(
        {"kind": "train", "model": "smollm2-135m", "data": "gsm8k", "max_steps": 1, "prompts_per_step": 1,
         "num_generations": 2, "max_completion_length": 8}
    )  # fmt: skip
    assert runner.dispatch(SimpleNamespace(recipe=recipe, probe=probe)).reason == called
