"""The embedded broker: a real Valkey that remembers, refuses strangers and stops by its pid."""

import os
import signal
import socket

import pytest
import redis

from tests.worker.ports import free_port
from tests.worker.waiting import wait_until
from worker.embedded import EmbeddedValkey, EmbeddedValkeyError


@pytest.fixture
def server(tmp_path):
    valkey = EmbeddedValkey(tmp_path / "home", free_port())
    yield valkey
    valkey.stop()


def client_of(valkey):
    return redis.Redis.from_url(valkey.url, decode_responses=True)


def listens(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_it_answers_and_is_configured_to_lose_nothing(server):
    server.start()

    client = client_of(server)
    config = client.config_get("*")
    assert client.ping()
    assert config["appendonly"] == "yes"
    assert config["appendfsync"] == "everysec"
    assert config["maxmemory-policy"] == "noeviction"
    assert config["bind"] == "127.0.0.1"
    assert config["protected-mode"] == "yes"
    assert config["dir"] == str(server.data_dir)
    client.close()


def test_it_stops_and_frees_its_port(server):
    server.start()
    pid = server.pid

    server.stop()

    assert not listens(server.port)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    server.stop()


@pytest.mark.faults
def test_a_killed_server_remembers_what_it_had_written(server):
    server.start()
    client = client_of(server)
    client.rpush("queue", "a", "b")
    # everysec promises at most a second of loss: wait for the fsync, then kill without warning.
    client.execute_command("WAITAOF", 1, 0, 5000)
    client.close()
    os.kill(server.pid, signal.SIGKILL)
    os.waitpid(server.pid, 0)

    again = EmbeddedValkey(server.data_dir.parent, server.port)
    again.start()

    client = client_of(again)
    assert client.lrange("queue", 0, -1) == ["a", "b"]
    client.close()
    again.stop()


def test_our_own_server_left_behind_is_adopted_and_can_be_stopped(server):
    server.start()

    second = EmbeddedValkey(server.data_dir.parent, server.port)
    second.start()
    assert second.pid == server.pid
    second.stop()

    wait_until(lambda: not listens(server.port), what="the adopted server to end")


def test_a_foreign_server_on_the_port_is_refused(server, tmp_path):
    server.start()

    with pytest.raises(EmbeddedValkeyError, match="DRIFTLINE_BROKER_URL"):
        EmbeddedValkey(tmp_path / "other", server.port).start()


def test_a_port_that_speaks_another_protocol_is_refused(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        port = stranger.getsockname()[1]
        with pytest.raises(EmbeddedValkeyError, match="taken"):
            EmbeddedValkey(tmp_path / "home", port).start()
