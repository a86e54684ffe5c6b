"""Submitting and following against a real api, while a thread plays the worker in the store."""

import io
import json
import threading

import pytest

from client.cli import main
from core.store.states import RunState
from tests.api.conftest import recipe
from tests.worker.waiting import wait_until

EVERY_S = 0.02


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr("client.follow.POLL_S", EVERY_S)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "recipe.json"
    path.write_text(json.dumps(recipe(name="followed")))
    return str(path)


class Runner:
    """Works the next posted run off, in a thread, as ``play`` says."""

    def __init__(self, build, client, play):
        self._build, self._client, self._play = build, client, play
        self._failure = None
        self._thread = threading.Thread(target=self._work)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._thread.join(60)
        if self._failure:
            raise self._failure

    def _work(self):
        try:
            (run,) = wait_until(lambda: self._client.runs(state="queued")["data"], what="a posted run")
            self._play(self._build, self._build.claimed(run["id"]))
        except BaseException as failure:  # noqa: BLE001 - told in the test's own thread
            self._failure = failure


def whole_run(state):
    def play(build, fence):
        build.points(fence, "reward", [0.25, 0.5])
        base = build.evaluation(fence, 0, "base", "1100")
        look = build.evaluation(fence, 2, "look", "1010")
        build.look(fence, 2, 1, look, "1100", "1010")
        assert base != look
        build.finish(fence, state)

    return play


@pytest.mark.parametrize(
    ("state", "status"),
    [(RunState.SUCCEEDED, 0), (RunState.FAILED, 2), (RunState.DAMAGE_STOPPED, 3), (RunState.CANCELLED, 4)],
)
def test_the_exit_status_is_the_outcome(capsys, build, client, file, state, status):
    with Runner(build, client, whole_run(state)):
        assert main(["submit", file]) == status
    text = capsys.readouterr().out
    assert text.startswith("run ")
    assert f"followed  {client.runs()['data'][0]['id']}  {state.value.replace('_', ' ')}: all steps done" in text
    assert "look 1 at step 2: accuracy 50.0 % on 4 items, 1 lost, 1 gained, statistic 1.25 (decides at 20)" in text
    assert "step 2 lost" in text
    assert "item-1" in text
    assert "Curves" in text


def test_json_lines_tell_everything_once_and_end_with_the_outcome(capsys, build, client, file):
    with Runner(build, client, whole_run(RunState.SUCCEEDED)):
        assert main(["submit", file, "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    kinds = [line["type"] for line in lines]
    assert kinds[-1] == "outcome"
    assert kinds.count("outcome") == kinds.count("look") == 1
    numbers = [line["event"]["seq"] for line in lines if line["type"] == "event"]
    assert numbers == sorted(set(numbers))
    assert (lines[-1]["state"], lines[-1]["exit_status"]) == ("succeeded", 0)
    assert [flips["lost"] for flips in lines[-1]["flips"].values()] == [["item-1"]]


def test_a_failed_run_shows_its_error_and_the_end_of_its_log(capsys, build, client, file):
    def play(build, fence):
        from core.store import queue

        error = {
            "category": "user",
            "code": "no_such_thing",
            "message": "the thing is missing",
            "log_tail": ["one", "two"],
        }
        with build.db.fenced(fence) as session:
            queue.finish(session, fence, state=RunState.FAILED, reason="the thing is missing", error=error)

    with Runner(build, client, play):
        assert main(["submit", file]) == 2
    text = capsys.readouterr().out
    assert "no_such_thing" in text
    assert "the recipe" in text
    assert text.index("one\ntwo") > text.index("end of the log")


def test_ctrl_c_detaches_and_says_how_to_come_back(capsys, build, client, file, monkeypatch):
    def interrupted(_client, _run_id):
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr("client.following.follow", interrupted)
    assert main(["submit", file]) == 130
    (run,) = client.runs()["data"]
    told = capsys.readouterr().err
    assert f"driftline show {run['id']} --follow" in told
    assert f"driftline cancel {run['id']}" in told
    assert run["state"] == "queued"


def test_show_follow_ends_with_the_outcome_of_a_run_that_ended_before(capsys, finished):
    assert main(["show", finished.id, "--follow"]) == 0
    assert "shown" in capsys.readouterr().out


def test_detach_returns_at_once_with_the_run(capsys, client, file):
    assert main(["submit", file, "--detach", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["state"] == "queued"
    assert main(["submit", file, "-d"]) == 0
    assert "driftline show" in capsys.readouterr().out
    assert len(client.runs()["data"]) == 2


def test_the_same_key_never_makes_a_second_run(client, file):
    assert main(["submit", file, "--detach", "--idempotency-key", "k"]) == 0
    assert main(["submit", file, "--detach", "--idempotency-key", "k"]) == 0
    assert len(client.runs()["data"]) == 1


def test_dry_run_plans_and_stores_nothing(capsys, client, file):
    assert main(["submit", file, "--dry-run"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("valid; nothing was stored\n")
    assert "GiB" in text
    assert main(["submit", file, "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["valid"] is True
    assert client.runs()["data"] == []


@pytest.mark.parametrize(
    ("text", "field", "word"),
    [
        (json.dumps(recipe() | {"lr": 1e-5}), "lr", "learning_rate"),
        ('{"kind": "train", "kind": "eval"}', "kind", "twice"),
        ("{", None, ""),
    ],
)
def test_a_refused_recipe_is_status_five_with_field_and_hint(capsys, url, monkeypatch, text, field, word):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert main(["submit", "-"]) == 5
    told = capsys.readouterr().err
    assert told.startswith("error: ")
    assert word in told
    assert field is None or f"\n  field: {field}\n" in told
    assert "Traceback" not in told


def test_a_recipe_file_that_is_not_there_is_named(capsys, url):
    assert main(["submit", "nowhere.json"]) == 1
    assert "nowhere.json" in capsys.readouterr().err
