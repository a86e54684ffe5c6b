"""Finding the service of a home: the lock, the address in ``server.json``, and whether this home's api answers there."""

import os
from dataclasses import replace

import pytest

from client import place, service
from client.api import DriftlineClient
from client.errors import NotReachable
from client.place import Server
from client.processes import Process
from core.home import home_id


@pytest.fixture
def home(url, settings, served):
    """A home whose supervisor is this process, with a served api."""
    served.app.state.service = replace(served.app.state.service, home_id=home_id(settings.home))
    settings.locks_dir.mkdir()
    server = Server(url=url, ready=True, supervisor=Process.of(os.getpid()), started_at=1.0)
    with place.home_lock(settings.home):
        place.write_server(settings.home, server)
        yield settings.home


def test_its_own_api_is_found(home, url):
    found = service.find(home)
    assert found is not None
    assert found.url == url


def test_an_api_of_another_home_that_took_the_port_is_not_taken_for_it(home, served, tmp_path):
    served.app.state.service = replace(served.app.state.service, home_id=home_id(tmp_path / "another"))
    assert service.find(home) is None


def test_without_an_id_of_its_own_nothing_is_found(home):
    (home / "home_id").unlink()
    assert service.find(home) is None


def test_nobody_at_the_address_is_nothing_found(home, url):
    server = place.read_server(home)
    assert server is not None
    place.write_server(home, replace(server, url="http://127.0.0.1:1"))
    assert service.find(home) is None


def test_a_client_of_a_home_talks_to_its_own_service_only(home, served, tmp_path, monkeypatch):
    monkeypatch.delenv("DRIFTLINE_URL")
    with DriftlineClient() as client:
        assert client.runs()["data"] == []
    served.app.state.service = replace(served.app.state.service, home_id=home_id(tmp_path / "another"))
    with DriftlineClient() as client:
        for _ in range(2):
            with pytest.raises(NotReachable, match="another home") as refused:
                client.submit({"kind": "train"})
            assert refused.value.code == "another_home"
        with pytest.raises(NotReachable, match="another home"), client.download("/runs/ab/rollouts/export", {}):
            pass


def test_a_service_that_is_named_may_be_any(home, served, url, tmp_path, monkeypatch):
    served.app.state.service = replace(served.app.state.service, home_id=home_id(tmp_path / "another"))
    with DriftlineClient() as client:
        assert client.runs()["data"] == []
    monkeypatch.delenv("DRIFTLINE_URL")
    with DriftlineClient(url) as client:
        assert client.runs()["data"] == []
