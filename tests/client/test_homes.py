"""A home that cannot be used is one error that names it, whichever command meets it first."""

import os
import subprocess
import sys

import pytest

from client.cli import main
from client.place import ROOT

BROKEN = b"no database at all, only some text that is long enough to be taken for the head of a file" * 20


@pytest.fixture(autouse=True)
def variables(monkeypatch):
    for name in ("DRIFTLINE_URL", "DRIFTLINE_TOKEN", "DRIFTLINE_BROKER_URL", "DRIFTLINE_DATABASE_URL"):
        monkeypatch.delenv(name, raising=False)


def refused(capsys, *command):
    assert main(command) == 1
    return capsys.readouterr().err


@pytest.mark.parametrize("command", [["up"], ["up", "--background"], ["demo"], ["tokens"], ["token", "me"]])
def test_a_home_that_cannot_be_made_is_named(capsys, monkeypatch, command):
    monkeypatch.setenv("DRIFTLINE_HOME", "/proc/x")
    assert refused(capsys, *command).startswith("error: DRIFTLINE_HOME /proc/x cannot be used: ")


@pytest.mark.parametrize("command", [["up"], ["up", "--background"], ["down"], ["tokens"], ["token", "me"]])
def test_a_home_that_is_a_file_is_named(capsys, monkeypatch, tmp_path, command):
    home = tmp_path / "home"
    home.write_text("")
    monkeypatch.setenv("DRIFTLINE_HOME", str(home))
    assert refused(capsys, *command).startswith(f"error: DRIFTLINE_HOME {home} cannot be used: ")


def test_nothing_to_stop_in_a_home_that_was_never_made(capsys, monkeypatch):
    monkeypatch.setenv("DRIFTLINE_HOME", "/proc/x")
    assert main(["down"]) == 0
    assert "nothing runs" in capsys.readouterr().out


@pytest.mark.parametrize("command", [["up"], ["up", "--background"], ["tokens"]])
def test_a_database_file_that_holds_no_database_is_told_in_words(tmp_path, command):
    (tmp_path / "driftline.db").write_bytes(BROKEN)
    env = os.environ | {"DRIFTLINE_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    program = [sys.executable, "-m", "client.cli", *command]
    done = subprocess.run(program, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "file is not a database" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith(f"error: DRIFTLINE_HOME {tmp_path} cannot be used: ")


def test_a_database_named_by_its_variable_is_told_by_it(capsys, monkeypatch, tmp_path):
    (tmp_path / "other.db").write_bytes(BROKEN)
    monkeypatch.setenv("DRIFTLINE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DRIFTLINE_DATABASE_URL", f"sqlite:///{tmp_path / 'other.db'}")
    assert refused(capsys, "up").startswith("error: DRIFTLINE_DATABASE_URL cannot be used: ")
