"""Commands against a real api: tables for people, documents for programs, and errors in the service's own words."""

import json
import os
import subprocess
import sys

import pytest

from client.cli import main
from client.place import ROOT
from tests.client.conftest import NOBODY


def told(capsys, *arguments, status=0):
    assert main(arguments) == status
    return capsys.readouterr().out


def document(capsys, *arguments, status=0):
    return json.loads(told(capsys, *arguments, "--json", status=status))


def row(text, beginning):
    """The words of the one line that begins so."""
    (line,) = [line for line in text.splitlines() if line.startswith(beginning)]
    return line.split()


def test_list_has_one_aligned_line_per_run(capsys, build, finished):
    waiting = build.queued(name="waits")
    text = told(capsys, "list")
    head, *lines = text.splitlines()
    assert [line.split()[0] for line in lines] == [waiting["id"], finished.id]
    assert {line.index("train") for line in lines} == {head.index("kind")}
    assert "succeeded" in lines[1]
    assert "8/12 step" in lines[1]
    assert "just now" in lines[0]
    assert told(capsys, "list", "--state", "failed") == "no runs\n"
    assert "--limit 2 shows more" in told(capsys, "list", "--limit", "1")


def test_list_as_json_is_the_services_page(capsys, finished):
    page = document(capsys, "list", "--kind", "train")
    assert [run["id"] for run in page["data"]] == [finished.id]
    assert page["has_more"] is False


def test_show_tells_the_outcome_and_the_attempts(capsys, finished, url):
    text = told(capsys, "show", finished.id[:6])
    assert text.startswith(f"shown  {finished.id}  succeeded\n")
    assert row(text, "outcome") == ["outcome", "all", "steps", "done"]
    assert row(text, "page") == ["page", f"{url}/#/runs/{finished.id}"]
    assert row(text, "1 ")[1] == "finished"
    assert document(capsys, "show", finished.id)["id"] == finished.id


def test_show_of_a_waiting_run_says_why_it_waits(capsys, build):
    text = told(capsys, "show", build.queued()["id"])
    assert "waiting: no worker is alive" in text


def test_curves_show_first_and_last_value_and_a_shape_with_a_gap(capsys, finished):
    text = told(capsys, "curves", finished.id)
    assert row(text, "reward")[:5] == ["reward", "score", "0.25", "0.75", "1"]
    # 0.25 is the lowest, 1.0 the highest, and the third value is not finite.
    assert "▁▃ ▆█▃▃▆" in text
    assert "step_time" not in text.splitlines()[1]
    assert row(told(capsys, "curves", finished.id, "--all"), "step_time")[2:4] == ["2", "2"]
    assert row(told(capsys, "curves", finished.id, "step_time", "--from-step", "7"), "step_time")[4:7] == [
        "7",
        "to",
        "8",
    ]
    assert set(document(capsys, "curves", finished.id, "reward")["curves"]) == {"reward"}


def test_looks_name_the_lost_and_gained_items_when_asked(capsys, finished):
    text = told(capsys, "looks", finished.id)
    # Base 1111111100 and look 1111110110: item 6 lost, items 7 and 8 ... by position: 6 is lost, 8 is gained.
    assert row(text, "   1")[:4] == ["1", "4", "10", "80.0"]
    assert "item-" not in text
    with_items = told(capsys, "looks", finished.id, "--items")
    assert row(with_items, "  step 4 lost")[3:] == ["item-6"]
    assert row(with_items, "  step 4 gained")[3:] == ["item-8"]
    first, second = document(capsys, "looks", finished.id, "--items")["data"]
    assert (first["lost_items"], first["gained_items"]) == (["item-6"], ["item-8"])
    assert (second["lost"], second["lost_items"]) == (2.0, ["item-3", "item-6"])


def test_damage_stop_leads_with_the_state_and_the_statement(capsys, finished):
    status = document(capsys, "damage-stop", finished.id)
    text = told(capsys, "damage-stop", finished.id)
    assert text.startswith("Damage stop  " + status["state"].replace("_", " "))
    assert text.splitlines()[1] == status["statement"]
    assert "2 lost, 2 gained" in text


def test_logs_are_printed_as_they_are_written(capsys, finished):
    assert told(capsys, "logs", finished.id).splitlines()[:2] == ["INFO start", "WARNING slow"]
    assert told(capsys, "logs", finished.id, "--level", "error", "-n", "2").splitlines()[-1] == "  line"
    assert document(capsys, "logs", finished.id, "--search", "slow")["data"][0]["text"] == "WARNING slow"


def test_logs_cannot_steer_the_terminal(capsys, finished, build):
    build.log(finished.id, 7, "INFO \x1b]0;mine\x07 \x1b[2J\n")
    assert told(capsys, "logs", finished.id, "-n", "1") == "INFO \\x1b]0;mine\\x07 \\x1b[2J\n"
    assert document(capsys, "logs", finished.id, "-n", "1")["data"][0]["text"] == "INFO \x1b]0;mine\x07 \x1b[2J"


def test_logs_of_a_final_run_are_followed_to_their_end(capsys, finished):
    lines = told(capsys, "logs", "-f", finished.id, "--json").splitlines()
    assert [json.loads(line)["text"] for line in lines][-1] == "INFO end"


def test_a_queued_run_is_cancelled_at_once_and_only_once(capsys, build):
    run = build.queued()["id"]
    assert told(capsys, "cancel", run) == f"run {run} cancelled\n"
    assert main(["resume", run]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert "cancelled" in error
    assert "Traceback" not in error


def test_a_running_run_is_paused_behind_a_checkpoint(capsys, build):
    fence = build.running()
    assert told(capsys, "pause", fence.run_id) == f"run {fence.run_id} is paused after it wrote a checkpoint\n"
    assert document(capsys, "cancel", fence.run_id)["state"] == "cancelling"


def test_a_missing_run_is_an_error_with_its_field(capsys, url):
    assert main(["show", "abc"]) == 1
    assert capsys.readouterr().err.splitlines()[1] == "  field: id"
    error = document(capsys, "show", "abc", status=1)["error"]
    assert (error["code"], error["param"]) == ("not_found", "id")


@pytest.mark.parametrize("command", [["list"], ["show", "abc"], ["logs", "abc"], ["cancel", "abc"], ["submit", "-"]])
def test_a_service_that_is_not_there_is_status_six_and_says_how_to_start_it(capsys, monkeypatch, command):
    monkeypatch.setenv("DRIFTLINE_URL", NOBODY)
    monkeypatch.setattr("client.following.read", lambda _file: b"{}")
    assert main(command) == 6
    assert "driftline up" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["show"],
        ["list", "--limit", "0"],
        ["list", "--lim", "3"],
        ["logs", "abc", "--tail", "-1"],
        ["up", "extra"],
    ],
)
def test_wrong_usage_is_status_one_because_two_means_a_failed_run(capsys, arguments):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 1
    assert "--help" in capsys.readouterr().err


def test_help_and_version_need_no_service(capsys, monkeypatch):
    monkeypatch.setenv("DRIFTLINE_URL", NOBODY)
    assert "damage-stop" in told(capsys)
    assert told(capsys, "--version").startswith("driftline ")


def test_help_imports_nothing_heavy():
    code = (
        "import sys, client.cli\n"
        "try:\n client.cli.main(['submit', '--help'])\n"
        "except SystemExit as stop: assert stop.code == 0\n"
        "print(sorted({name.split('.')[0] for name in sys.modules} & set(sys.argv[1:])))"
    )
    heavy = [
        "httpx",
        "rich",
        "typer",
        "click",
        "pydantic",
        "fastapi",
        "sqlalchemy",
        "asyncio",
        "torch",
        "core",
        "worker",
    ]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code, *heavy], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_no_module_of_the_client_imports_torch():
    names = [f"client.{path.stem}" for path in (ROOT / "client").glob("*.py") if path.stem != "__init__"]
    code = f"import sys, importlib\nfor name in {names}: importlib.import_module(name)\nprint('torch' in sys.modules)"
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
