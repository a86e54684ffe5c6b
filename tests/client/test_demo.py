"""The demo: its recipe, the model it prepares, and what it prints from recorded answers of the api.

The answers are about a run of the demo's shape whose values were written into the store; no model was trained for them.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest

from client import report, starting
from client.cli import main
from client.place import Server
from client.processes import Process
from core.recipes import parse_recipe
from core.store.states import RunState
from tests.client.test_following import Runner, whole_run

RECORDED = Path(__file__).parent / "recorded" / "demo.json"


@pytest.fixture
def found():
    """What the api answered about a finished run, as ``report.gather`` put it together."""
    return json.loads(RECORDED.read_text())


@pytest.fixture
def started(url, settings, monkeypatch):
    """A service that counts as started, with its model in place."""
    server = Server(url, ready=True, supervisor=Process.of(os.getpid()), started_at=0.0)
    monkeypatch.setattr(starting.service, "up_background", lambda _settings, _say: (server, True))
    monkeypatch.setattr("client.follow.POLL_S", 0.02)
    settings.smollm2_dir.mkdir(parents=True)
    (settings.smollm2_dir / "config.json").write_text("{}")
    return server


def section(text, title, end):
    return text.split(f"\n{title}\n")[1].split(f"\n{end}")[0].splitlines()


def test_the_recipe_is_found_beside_the_package_and_is_valid():
    recipe = parse_recipe(starting.DEMO_RECIPE.read_bytes())
    assert recipe.name == "demo-cpu"


@pytest.mark.parametrize(("state", "status"), [(RunState.SUCCEEDED, 0), (RunState.DAMAGE_STOPPED, 3)])
def test_each_demo_is_a_new_run_and_ends_with_its_outcome(capsys, started, build, client, state, status):
    for _ in range(2):
        with Runner(build, client, whole_run(state)):
            assert main(["demo"]) == status
    assert len(client.runs()["data"]) == 2
    text = capsys.readouterr().out
    assert f"Driftline is ready at {started.url}" in text
    assert text.rstrip().endswith("another `driftline demo` starts at once.")


def test_the_model_is_prepared_only_when_it_is_missing(monkeypatch, started, settings):
    calls = []

    def prepared(command, **_options):
        calls.append(command)
        return subprocess.CompletedProcess(command, 1, "", "noise\nno GGUF file: run `make setup`\n")

    monkeypatch.setattr(starting.subprocess, "run", prepared)
    starting._prepare_model(settings, print)
    assert calls == []
    (settings.smollm2_dir / "config.json").unlink()
    with pytest.raises(starting.StartError, match="no GGUF file"):
        starting._prepare_model(settings, print)
    assert calls[0][-1] == str(settings.smollm2_dir)


def test_ctrl_c_while_following_leaves_run_and_service(capsys, started, client, monkeypatch):
    def interrupted(_client, _run_id):
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr("client.following.follow", interrupted)
    assert main(["demo"]) == 130
    assert client.runs()["data"][0]["state"] == "queued"
    assert "detached" in capsys.readouterr().err


def test_a_recorded_demo_is_told_in_full(capsys, found):
    report.print_report(found, last_words="bye")
    text = capsys.readouterr().out
    run, status = found["run"], found["damage_stop"]
    assert f"demo-cpu  {run['id']}  succeeded: {run['outcome_reason']}\n" in text

    curves = {line.split()[0]: line for line in section(text, "Curves", "\nLooks")[1:]}
    points = found["curves"]["curves"]["reward"]["points"]
    assert curves["reward"].split()[2:4] == [f"{points[0][1]:.4g}", f"{points[-1][1]:.4g}"]
    assert "heldout/accuracy" in curves

    looks = section(text, "Looks", "\nDamage stop")
    assert [line.split()[1] for line in looks[1 : 1 + len(found["looks"])]] == [
        str(look["step"]) for look in found["looks"]
    ]
    for look in found["looks"]:
        for side in ("lost", "gained"):
            for item in found["flips"][look["id"]][side]:
                assert item in text

    assert f"\n{status['statement']}\n" in text
    peak = max(point[1] for point in found["curves"]["curves"]["memory/peak_gib"]["points"])
    assert f"{peak:.2f} GiB" in text
    assert f"page              {found['url']}\n" in text
    assert text.endswith("bye\n")
    assert all(line == line.rstrip() for line in text.splitlines())


def test_a_recorded_demo_fits_a_narrow_terminal(found):
    import io

    from rich.console import Console

    from client import tables

    out = io.StringIO()
    console = Console(width=100, file=out, force_terminal=False)
    for part in (
        tables.curves(found["curves"]),
        tables.looks(found["looks"], found["flips"]),
        *tables.damage(found["damage_stop"]),
    ):
        console.print(part)
    assert "…" not in out.getvalue()
