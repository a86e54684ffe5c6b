"""The supervisor's parts: pauses before restarts, the broker's port, and what /readyz says in words."""

import os
import socket
import subprocess
import sys

import pytest

from client import children
from client.supervisor import Unit, readiness
from tests.worker.ports import free_port
from worker.embedded import EmbeddedValkeyError


class Mortal:
    """A child that ends at once."""

    name = "mortal"

    def start(self):
        self.process = subprocess.Popen([sys.executable, "-S", "-c", ""])
        return self.process.pid


@pytest.fixture
def unit():
    made = Unit(Mortal())
    yield made
    if made.descriptor >= 0:
        os.close(made.descriptor)


def test_pauses_grow_with_every_death_in_a_row_and_shrink_after_a_steady_life(unit):
    pauses = []
    for _ in range(8):
        unit.start()
        unit.child.process.wait()
        pauses.append(unit.buried())
    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    unit.start()
    unit.child.process.wait()
    unit.started -= 61.0
    assert unit.buried() == 0.5


def test_readiness_names_what_is_missing(url):
    told = readiness(url)
    assert "broker: " in told
    assert "worker: no worker was heard" in told
    assert "database" not in told
    assert "does not answer" in readiness("http://127.0.0.1:9")


def test_a_taken_port_is_seen_and_the_next_free_one_found():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert not children.port_is_free("127.0.0.1", port)
        found = children.free_port("127.0.0.1", port)
        assert found is not None
        assert found > port
    assert children.free_port("127.0.0.1", 2**16) is None


@pytest.mark.slow
def test_the_broker_passes_over_a_foreign_server_and_keeps_to_its_own(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as foreign:
        port, other = foreign.getsockname()[1], free_port()
        with pytest.raises(EmbeddedValkeyError, match="taken"):
            children.find_broker(tmp_path, [port])
        broker = children.find_broker(tmp_path, [port, other])
    try:
        assert broker.port == other
        pid = broker.start()
        assert children.find_broker(tmp_path, [other]).start() == pid, "a second one adopts it"
    finally:
        broker.stop(1.0)
    assert children.port_is_free("127.0.0.1", other)
