"""Health, readiness, versions, capabilities, gauges and the page."""

import socket
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from core.home import home_id
from core.settings import Settings
from core.store import queue
from core.store.database import Database
from tests.api.conftest import Builder


def test_health_answers_without_the_database(client: TestClient, settings: Settings) -> None:
    client.app.state.service = replace(client.app.state.service, db=Database("sqlite:////nowhere/at/all.db"))  # type: ignore[attr-defined]
    assert client.get("/healthz").json() == {"status": "ok", "home_id": home_id(settings.home)}


def test_readiness_names_the_parts_that_failed(client: TestClient) -> None:
    answer = client.get("/readyz")
    parts = answer.json()["parts"]
    assert answer.status_code == 503
    assert parts["database"]["ok"] is True
    assert parts["broker"]["ok"] is False
    assert parts["worker"]["ok"] is False


@pytest.fixture
def broker() -> Iterator[str]:
    """A socket that speaks just enough of the protocol to answer one client's PING."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = server.accept()
        with connection:
            while data := connection.recv(4096):
                # one +OK per command of the handshake, +PONG for the ping
                commands = data.count(b"*")
                connection.sendall((b"+PONG\r\n" if b"PING" in data else b"+OK\r\n") * commands)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield f"redis://127.0.0.1:{server.getsockname()[1]}/0"
    server.close()


def test_ready_with_database_broker_and_a_fresh_worker(client: TestClient, broker: str, db: Database) -> None:
    service = client.app.state.service  # type: ignore[attr-defined]
    client.app.state.service = replace(service, settings=replace(service.settings, broker_url=f"{broker}?protocol=2"))  # type: ignore[attr-defined]
    with db.write() as session:
        queue.register_worker(session, hostname="host", pid=1, device=None)
    answer = client.get("/readyz")
    assert answer.json()["parts"]["broker"]["ok"] is True
    assert answer.status_code == 200


def test_a_worker_that_stopped_claiming_is_no_worker_and_says_why(client: TestClient, db: Database) -> None:
    with db.write() as session:
        broken = queue.register_worker(session, hostname="host", pid=1, device=None)
        queue.mark_unready(session, broken, "three runs crashed in a row")
    part = client.get("/readyz").json()["parts"]["worker"]
    assert part["ok"] is False
    assert f"worker {broken} has stopped claiming: three runs crashed in a row" in part["detail"]
    with db.write() as session:
        queue.register_worker(session, hostname="host", pid=2, device=None)
    assert client.get("/readyz").json()["parts"]["worker"]["ok"] is True


def test_version_names_service_schema_and_packages(client: TestClient) -> None:
    body = client.get("/version").json()
    assert body["api"] == "1"
    assert body["schema_revision"]
    assert "fastapi" in body["packages"]


def test_capabilities_name_algorithms_and_live_devices(client: TestClient, build: Builder) -> None:
    build.running()
    body = client.get("/capabilities").json()
    assert "grpo" in body["algorithms"]
    assert "gsm8k" in body["suites"]
    assert body["stop_rules"] == ["eprocess", "mcnemar_spending", "threshold"]
    assert [worker["device"]["kind"] for worker in body["workers"]] == ["cpu"]


def test_gauges_count_runs_by_state_and_tell_heartbeat_age(client: TestClient, build: Builder) -> None:
    build.running()
    build.queued()
    families = {family.name: family for family in text_string_to_metric_families(client.get("/metrics").text)}
    by_state = {sample.labels["state"]: sample.value for sample in families["driftline_runs"].samples}
    assert (by_state["running"], by_state["queued"], by_state["failed"]) == (1, 1, 0)
    assert families["driftline_queue_depth"].samples[0].value == 1
    assert families["driftline_worker_heartbeat_age_seconds"].samples[0].value < 60


def test_page_loads_nothing_from_elsewhere(client: TestClient) -> None:
    page = client.get("/")
    assert page.headers["Content-Type"].startswith("text/html")
    assert "script-src 'self'" in page.headers["Content-Security-Policy"]
    assert "unsafe" not in page.headers["Content-Security-Policy"]
    for path in ("/web/page.js", "/web/chart.js", "/web/page.css"):
        text = client.get(path).text
        assert path in page.text or path == "/web/chart.js"
        assert "http://" not in text.replace("http://www.w3.org/2000/svg", "")
        assert "https://" not in text
    assert "https://" not in page.text


def test_page_builds_no_markup_from_text(client: TestClient) -> None:
    for path in ("/web/page.js", "/web/chart.js", "/web/analysis.js", "/web/evaluations.js"):
        text = client.get(path).text
        assert "innerHTML" not in text
        assert "insertAdjacentHTML" not in text
        assert "eval(" not in text


@pytest.mark.parametrize("path", ["/web/", "/web/../app.py", "/web/%2e%2e/app.py", "/docs", "/redoc", "/nowhere"])
def test_other_paths_are_not_found_with_the_contracts_error(client: TestClient, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "not_found"


def test_wrong_method_names_the_allowed_ones(client: TestClient) -> None:
    answer = client.put("/runs", json={})
    assert answer.status_code == 405
    assert answer.headers["Allow"]
    assert answer.json()["error"]["code"] == "method_not_allowed"
