"""Power cuts at every place: each run completes exactly once, each step is on the curve once, and the bits are the same."""

import os
import signal
from collections.abc import Iterator

import pytest

from tests.service.live import Live, steps_of, tiny_models, tiny_recipe, values_of, wait_for

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(900)]
REPEATABLE = ("reward", "loss", "entropy", "kl", "grad_norm", "weights/changed_share")


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = tmp_path_factory.mktemp("faults")
    service = Live(folder / "home", tiny_models(folder / "models"))
    yield service
    service.stop()


@pytest.fixture(scope="module")
def undisturbed(live: Live) -> str:
    """A run that nobody touches, for comparison."""
    run_id = live.client.submit(tiny_recipe())["id"]
    assert live.finished(run_id)["state"] == "succeeded"
    return run_id


def kill_worker(live: Live, run_id: str) -> None:
    live.kill("worker")


def kill_runner(live: Live, run_id: str) -> None:
    pid = wait_for("a runner", lambda: live.runner_pid(run_id))
    os.kill(pid, signal.SIGKILL)


def kill_broker(live: Live, run_id: str) -> None:
    live.kill("broker")


def kill_api(live: Live, run_id: str) -> None:
    live.kill("api")


@pytest.mark.parametrize(
    ("kill", "step"), [(kill_worker, 7), (kill_runner, 1), (kill_runner, 8), (kill_broker, 5), (kill_api, 4)]
)
def test_a_power_cut_mid_step_changes_nothing_that_is_recorded(live: Live, undisturbed: str, kill, step) -> None:
    run_id = live.client.submit(tiny_recipe())["id"]
    live.at_step(run_id, step)
    kill(live, run_id)
    live.ready()
    run = live.finished(run_id)
    assert run["state"] == "succeeded"
    expected, found = live.client.curves(undisturbed), live.client.curves(run_id)
    for key in REPEATABLE:
        assert steps_of(found, key) == list(range(1, 13))
        assert values_of(found, key) == values_of(expected, key)
    assert live.weights(run_id) == live.weights(undisturbed)
    finished = live.rows("select count(*) from events where run_id = ? and type = 'run_finished'", run_id)
    assert finished[0][0] <= 1
    overlapping = live.rows(
        "select count(*) from attempts a join attempts b on a.run_id = b.run_id and a.number < b.number "
        "where a.run_id = ? and (a.ended_at is null or a.ended_at > b.started_at)",
        run_id,
    )
    assert overlapping[0][0] == 0


def test_no_finished_step_is_lost_when_its_attempt_dies(live: Live) -> None:
    run_id = live.client.submit(tiny_recipe(save={"every": 12}))["id"]
    live.at_step(run_id, 5)
    kill_runner(live, run_id)
    live.finished(run_id)
    first = live.rows("select distinct step from metrics where run_id = ? and attempt = 1 and key = 'reward'", run_id)
    assert {1, 2, 3, 4, 5} <= {row[0] for row in first}


def test_runs_queued_while_the_broker_dies_all_complete_once(live: Live) -> None:
    ids = [
        live.client.submit(tiny_recipe(max_steps=2, looks=None, damage_stop=None, save={"every": 2}, seed=seed))["id"]
        for seed in range(4)
    ]
    live.kill("broker")
    for run_id in ids:
        run = live.finished(run_id)
        assert (run["state"], run["attempt"]["number"]) == ("succeeded", 1)


def test_cancel_leaves_a_checkpoint_and_pause_continues_to_the_same_bits(live: Live, undisturbed: str) -> None:
    run_id = live.client.submit(tiny_recipe())["id"]
    live.at_step(run_id, 2)
    live.client.pause(run_id)
    wait_for("paused", lambda: live.client.run(run_id)["state"] == "paused")
    live.client.resume(run_id)
    assert live.finished(run_id)["state"] == "succeeded"
    assert live.weights(run_id)[12] == live.weights(undisturbed)[12]
    cancelled = live.client.submit(tiny_recipe())["id"]
    live.at_step(cancelled, 2)
    live.client.cancel(cancelled)
    run = live.finished(cancelled)
    assert run["state"] == "cancelled"
    assert max(live.weights(cancelled)) == run["step"]
