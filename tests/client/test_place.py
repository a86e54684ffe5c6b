"""Where the service is, and which process is meant."""

import json
import os
import subprocess
import sys

import pytest

from client import place
from client.place import Server
from client.processes import Process, terminate
from tests.worker.waiting import wait_until


@pytest.fixture
def home(tmp_path):
    (tmp_path / "locks").mkdir()
    return tmp_path


@pytest.fixture
def sleeper():
    process = subprocess.Popen(
        [sys.executable, "-c", "print(flush=True); input()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    process.stdout.readline()
    yield process
    process.kill()
    process.wait()
    process.stdin.close()
    process.stdout.close()


def server(**changes):
    facts = {"url": "http://127.0.0.1:8500", "ready": True, "supervisor": Process.of(os.getpid()), "started_at": 1.0}
    return Server(**facts | changes)


def test_the_address_comes_from_the_variable_then_the_home_then_the_default(home):
    env = {"DRIFTLINE_HOME": str(home)}
    assert place.service_url(env) == place.DEFAULT_URL
    place.write_server(home, server())
    assert place.service_url(env) == "http://127.0.0.1:8500"
    assert place.service_url(env | {"DRIFTLINE_URL": "https://elsewhere:1/"}) == "https://elsewhere:1"


def test_the_file_says_the_same_after_it_was_read_and_leaves_nothing_beside_it(home):
    written = server(broker_port=6390, children={"api": Process(12, 34)})
    place.write_server(home, written)
    assert place.read_server(home) == written
    assert json.loads(place.server_file(home).read_text())["pid"] == os.getpid()
    assert sorted(path.name for path in home.iterdir()) == ["locks", "server.json"]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"url": "http://x", "ready": true, "supervisor": 3}', "\x00"])
def test_a_file_that_cannot_be_read_counts_as_none(home, text):
    place.server_file(home).write_text(text)
    assert place.read_server(home) is None
    assert place.service_url({"DRIFTLINE_HOME": str(home)}) == place.DEFAULT_URL


def test_the_lock_keeps_a_second_supervisor_out_and_goes_with_its_holder(home):
    assert not place.is_supervised(home)
    code = f"import pathlib, client.place as p\nwith p.home_lock(pathlib.Path({str(home)!r})):\n print(flush=True); input()"
    env = os.environ | {"PYTHONPATH": str(place.ROOT)}
    holder = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env)
    with holder:
        holder.stdout.readline()
        assert place.is_supervised(home)
        with pytest.raises(place.HomeTakenError), place.home_lock(home):
            pass
        holder.kill()
        holder.wait()
        wait_until(lambda: not place.is_supervised(home), what="the lock to be free")
    with place.home_lock(home):
        pass


def test_a_process_is_its_pid_and_its_start_so_a_reused_pid_is_another(sleeper):
    known = Process.of(sleeper.pid)
    assert known.alive
    stranger = Process(known.pid, known.started + 1)
    assert not stranger.alive
    assert terminate(stranger, 1.0)
    assert known.alive, "a stranger with the same pid must not be hit"
    assert terminate(known, 30.0)
    assert not known.alive


def test_a_pid_that_nobody_has_is_refused():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    with pytest.raises(ProcessLookupError):
        Process.of(process.pid)
