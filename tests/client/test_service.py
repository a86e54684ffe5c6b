"""``driftline up`` with real processes: start, a second start, killed children, a killed supervisor, down."""

import json
import os
import signal
import subprocess
import sys

import psutil
import pytest

from client import place, service
from client.cli import main
from client.processes import Process
from client.supervisor import readiness
from tests.worker.ports import free_port
from tests.worker.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.faults, pytest.mark.timeout(600)]

PATIENCE_S = 120.0


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home of its own, with quick heartbeats; whatever is left of its service is killed at the end, by pid."""
    home = tmp_path / "home"
    for name in ("DRIFTLINE_URL", "DRIFTLINE_TOKEN", "DRIFTLINE_BROKER_URL", "DRIFTLINE_DATABASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DRIFTLINE_HOME", str(home))
    monkeypatch.setenv("DRIFTLINE_PORT", str(free_port()))
    monkeypatch.setenv("DRIFTLINE_HEARTBEAT_S", "0.5")
    monkeypatch.setenv("DRIFTLINE_LEASE_TTL_S", "6")
    yield home
    for process in of_home(home):
        process.kill()
    for log in (home / "logs").glob("*.log"):
        sys.stdout.write(f"--- {log.name}\n{log.read_text()}\n")


def of_home(home):
    """Every living process whose environment or command line names this home."""
    found = []
    for process in psutil.process_iter():
        try:
            named = process.environ().get("DRIFTLINE_HOME") == str(home) and process.pid != os.getpid()
            if process.status() != psutil.STATUS_ZOMBIE and (named or str(home / "valkey") in process.cmdline()):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def server_of(home):
    found = place.read_server(home)
    assert found is not None
    return found


def replaced(home, name, before):
    """The new process of a child once there is one."""

    def fresh():
        now = (place.read_server(home) or before).children.get(name)
        return now if now and now != before.children[name] and now.alive else None

    return wait_until(fresh, within=PATIENCE_S, what=f"a new {name}")


def is_ready(home):
    return wait_until(lambda: readiness(server_of(home).url) == "ready", within=PATIENCE_S, what="/readyz to be 200")


def test_it_comes_up_survives_kills_of_each_child_and_leaves_nothing_behind(home, capsys):
    assert main(["up", "--background", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    before = server_of(home)
    assert told["started"] is True
    assert (told["pid"], told["url"]) == (before.supervisor.pid, before.url)
    assert readiness(before.url) == "ready"
    assert main(["list"]) == 0, "the client finds the service by its home"

    assert main(["up", "--background", "--json"]) == 0
    again = json.loads(capsys.readouterr().out.removeprefix("no runs\n"))
    assert (again["started"], again["pid"]) == (False, told["pid"])
    assert main(["up"]) == 0, "in the foreground too, a running service is enough"
    assert "already runs" in capsys.readouterr().out

    for name in ("worker", "broker", "api"):
        os.kill(before.children[name].pid, signal.SIGKILL)
        replaced(home, name, before)
    is_ready(home)
    now = server_of(home)
    assert now.url == before.url
    assert now.supervisor == before.supervisor

    assert main(["down"]) == 0
    assert of_home(home) == []
    assert not place.server_file(home).exists()
    assert main(["down"]) == 0
    assert "nothing runs" in capsys.readouterr().out


def test_a_killed_supervisor_takes_api_and_worker_along_and_the_next_one_adopts_the_broker(home):
    assert main(["up", "--background"]) == 0
    before = server_of(home)
    os.kill(before.supervisor.pid, signal.SIGKILL)
    for name in ("api", "worker"):
        wait_until(lambda name=name: not before.children[name].alive, within=PATIENCE_S, what=f"the {name} to end")
    assert service.find(home) is None
    assert main(["up", "--background"]) == 0
    after = server_of(home)
    assert after.supervisor != before.supervisor
    assert after.children["broker"] == before.children["broker"]
    os.kill(after.supervisor.pid, signal.SIGKILL)
    wait_until(lambda: not after.supervisor.alive, what="the supervisor's end")
    assert main(["down"]) == 0
    assert of_home(home) == []


def test_ports_that_others_hold_are_passed_over_and_ctrl_c_stops_the_foreground(home, monkeypatch):
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setenv("DRIFTLINE_PORT", str(port))
        process = subprocess.Popen(
            [sys.executable, "-m", "client.cli", "up"], cwd=place.ROOT, stdout=subprocess.PIPE, text=True
        )
        with process:
            lines = []
            for line in process.stdout:
                lines.append(line)
                if "is ready at" in line:
                    break
            assert server_of(home).url != f"http://127.0.0.1:{port}"
            assert server_of(home).supervisor == Process.of(process.pid)
            process.send_signal(signal.SIGINT)
            lines += list(process.stdout)
            assert process.wait(PATIENCE_S) == 0
    assert f"port {port} is taken" in "".join(lines)
    assert lines[-1] == "stopped\n"
    assert of_home(home) == []


def test_a_service_that_cannot_start_says_why_and_leaves_nothing_behind(home, capsys, monkeypatch):
    monkeypatch.setenv("DRIFTLINE_GPU", "no such card")
    assert main(["up", "--background"]) == 1
    error = capsys.readouterr().err
    assert "the worker cannot start" in error
    assert "driftline worker: " in error, "the end of the worker's log says what is wrong"
    assert "Traceback" not in error
    assert of_home(home) == []
    assert not place.server_file(home).exists()
