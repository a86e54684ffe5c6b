"""A real api on a loopback port with SQLite in the test's folder and no worker; tests play the runner in the store."""

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import uvicorn

from api.app import create_app
from client.api import DriftlineClient
from core.settings import Settings
from core.store.database import Database
from core.store.migrations_api import migrate
from tests.api.conftest import Builder
from tests.worker.waiting import wait_until

NOBODY = "http://127.0.0.1:9"


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated database without rows."""
    path = tmp_path_factory.mktemp("client-database") / "driftline.db"
    migrate(f"sqlite:///{path}")
    return path


@pytest.fixture
def settings(tmp_path: Path, migrated: Path) -> Settings:
    (tmp_path / "driftline.db").write_bytes(migrated.read_bytes())
    return Settings(
        home=tmp_path, database_url=f"sqlite:///{tmp_path / 'driftline.db'}", broker_url="redis://127.0.0.1:1/0"
    )


@pytest.fixture
def url(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Address of a served api; ``DRIFTLINE_URL`` names it."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(create_app(settings, sweep=False), log_level="warning"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    wait_until(lambda: server.started, what="the api to serve")
    address = f"http://127.0.0.1:{listener.getsockname()[1]}"
    monkeypatch.setenv("DRIFTLINE_URL", address)
    monkeypatch.setenv("DRIFTLINE_HOME", str(settings.home))
    monkeypatch.delenv("DRIFTLINE_TOKEN", raising=False)
    yield address
    server.should_exit = True
    thread.join(30)
    listener.close()


@pytest.fixture
def db(settings: Settings) -> Iterator[Database]:
    database = Database(settings.database_url)
    yield database
    database.dispose()


@pytest.fixture
def client(url: str) -> Iterator[DriftlineClient]:
    with DriftlineClient(url) as made:
        yield made


@pytest.fixture
def build(url: str, db: Database, settings: Settings) -> Iterator[Builder]:
    """Writes runs into the store as a runner would."""
    with httpx.Client(base_url=url) as http:
        yield Builder(http, db, settings)  # type: ignore[arg-type]
