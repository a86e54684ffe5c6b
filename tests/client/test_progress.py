"""What a followed run looks like: each line once, counting now and then, and a block that fits a terminal."""

import io
import json

import pytest
from rich.console import Console

from client import progress, words
from client.follow import News, Step

AT = "2026-03-10T12:00:{:02d}.000Z"


def run(state="running", phase="train", done=5, total=12, unit="steps", **changes):
    facts = {
        "id": "7f3a12bc90de",
        "name": "demo-cpu",
        "kind": "train",
        "state": state,
        "step": done,
        "progress": {"phase": phase, "done": done, "total": total, "unit": unit},
        "queue": None,
        "eta": None,
        "outcome_reason": None,
        "recipe": {"max_steps": 12},
    }
    return facts | changes


def event(kind, second, **payload):
    return {"seq": second, "type": kind, "at": AT.format(second), "attempt": 1, "payload": payload}


def look(**changes):
    facts = {
        "id": "l", "number": 1, "step": 4, "accuracy": 0.5625, "n": 16, "lost": 1.5, "gained": 1.0,
        "statistic": 1.234, "threshold": 20.0, "state": "no_damage_shown", "created_at": AT.format(45),
    }  # fmt: skip
    return facts | changes


def lines(*news):
    teller = progress.Lines()
    return [line for one in news for _, line in teller.of(one)]


def test_events_steps_and_looks_are_told_in_the_order_they_happened():
    told = lines(
        News(
            run(),
            [Step(4, AT.format(40), {"reward": 0.25}), Step(5, AT.format(50), {"reward": 0.5})],
            [look()],
            [event("checkpoint", 44, step=4), event("attempt_claimed", 1, worker_id="w")],
        )
    )
    assert [line.split(":")[0].split("  reward")[0] for line in told] == [
        "attempt 1 taken by worker w",
        "step  4/12",
        "checkpoint of step 4",
        "look 1 at step 4",
        "step  5/12",
        "train",
    ]


def test_times_are_local():
    teller = progress.Lines()
    ((at, _),) = teller.of(News(run(state="succeeded"), events=[event("checkpoint", 44, step=4)]))
    assert at == f"{words.local(AT.format(44)):%H:%M:%S}"


def test_a_state_is_said_once_and_counting_within_it_only_now_and_then(monkeypatch):
    counting = [News(run(phase="base: holdout", done=done, total=80, unit="items")) for done in range(0, 80, 16)]
    assert lines(*counting) == ["base: holdout"]
    monkeypatch.setattr(progress, "_COUNTING_S", -1.0)
    assert lines(*counting)[1:] == [f"base: holdout {done}/80 items" for done in (16, 32, 48, 64)]


def test_waiting_says_why_and_paused_how_to_go_on():
    queued = News(run(state="queued", queue={"position": 1, "why": "no worker is alive; start one"}))
    assert lines(queued, queued) == ["queued: no worker is alive; start one"]
    assert "driftline resume 7f3a12bc90de" in lines(News(run(state="paused")))[0]


def test_silence_is_said_once_until_the_service_is_back():
    silent = News(run(), silent_s=progress._SILENT_AFTER_S + 1)
    told = lines(News(run()), News(run(), silent_s=0.1), silent, silent, News(run()), silent)
    assert [line[:28] for line in told] == ["train", "the service does not answer;", "the service does not answer;"]


def test_a_lost_value_and_a_lost_gradient_are_said_as_such():
    told = lines(
        News(run(), [Step(5, AT.format(1), {"reward": None})], events=[event("update_skipped", 0, reason="inf")])
    )
    assert told[0] == "update skipped: inf"
    assert told[1].startswith("step  5/12  reward -")


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_live_block_fits_the_terminal(width):
    values = {"reward": 0.4375, "heldout/accuracy": 0.5625, "loss": -0.0123, "kl": 0.00042, "step_time": 13.21}
    out = io.StringIO()
    news = News(run(eta={"seconds": 95.0}))
    Console(width=width, file=out, force_terminal=False).print(progress._block(news, values))
    text = out.getvalue()
    assert max(len(line) for line in text.splitlines()) <= width
    for word in ("demo-cpu", "train", "5/12", "reward 0.4375", "held-out 56.2 %", "1 min 35", "Ctrl-C"):
        assert word in text


def test_the_view_fits_where_it_is_shown(capsys, monkeypatch):
    assert isinstance(progress.view_for(as_json=True), progress.JsonView)
    assert isinstance(progress.view_for(as_json=False), progress.PlainView)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert isinstance(progress.view_for(as_json=False), progress.LiveView)


def test_the_live_view_shows_lines_and_closes(capsys):
    with progress.LiveView() as view:
        view.show(News(run(), [Step(5, AT.format(1), {"reward": 0.5})], [look()]))
        view.show(News(run(state="succeeded")))
    assert "look 1 at step 4" in capsys.readouterr().out


def test_json_lines_hold_a_run_only_when_something_but_its_eta_changed(capsys):
    view = progress.JsonView()
    for news in (News(run()), News(run(eta={"seconds": 9.0})), News(run(done=6)), News(run(), silent_s=3.0)):
        view.show(news)
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["type"] for line in told] == ["run", "run", "silence"]
