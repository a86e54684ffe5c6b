"""Where the service is, and which process is meant."""

import json
import os
import subprocess
import sys

import pytest

from client import place
from client.errors import ClientError, NotReachable
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


def test_the_address_comes_from_the_variable_then_the_home(home):
    env = {"DRIFTLINE_HOME": str(home)}
    place.write_server(home, server())
    assert place.service_url(env) == "http://127.0.0.1:8500"
    assert place.service_url(env | {"DRIFTLINE_URL": "https://elsewhere:1/"}) == "https://elsewhere:1"


def test_a_home_where_nothing_runs_is_never_answered_by_whoever_has_the_default_port(home, monkeypatch):
    words = f"no service runs in {home}; start it with `driftline up`"
    with pytest.raises(NotReachable) as named:
        place.service_url({"DRIFTLINE_HOME": str(home), "DRIFTLINE_PORT": "8500"})
    assert named.value.message == words
    with pytest.raises(NotReachable):
        place.service_url({"DRIFTLINE_HOME": str(home / "not made yet")})
    assert place.service_url({"DRIFTLINE_HOME": str(home), "DRIFTLINE_URL": "http://there:1"}) == "http://there:1"

    monkeypatch.chdir(home)
    (home / ".driftline").mkdir()
    with pytest.raises(NotReachable, match=r"\.driftline; start it"):
        place.service_url({})


def test_without_any_home_the_address_is_this_machines_port(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert place.service_url({}) == "http://127.0.0.1:8421"
    assert place.service_url({"DRIFTLINE_PORT": "8500"}) == "http://127.0.0.1:8500"


@pytest.mark.parametrize("port", ["0", "65536", "eighty", "-1", "80@elsewhere"])
def test_a_port_that_is_none_is_named(tmp_path, monkeypatch, port):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ClientError, match="from 1 to 65535") as caught:
        place.service_url({"DRIFTLINE_PORT": port})
    assert caught.value.param == "DRIFTLINE_PORT"


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
    with pytest.raises(NotReachable):
        place.service_url({"DRIFTLINE_HOME": str(home)})


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
