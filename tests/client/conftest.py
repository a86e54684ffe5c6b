"""A real api on a loopback port with SQLite in the test's folder and no worker; tests play the runner in the store."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from api.app import create_app
from client.api import DriftlineClient
from core.settings import Settings
from core.store.database import Database
from core.store.migrations_api import migrate
from tests.api.conftest import Builder, FinishedRun
from tests.serving import Served, serve

NOBODY = "http://127.0.0.1:9"


def settings_in(home: Path) -> Settings:
    return Settings(home=home, database_url=f"sqlite:///{home / 'driftline.db'}", broker_url="redis://127.0.0.1:1/0")


@pytest.fixture(scope="session")
def empty_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with a migrated database without rows."""
    home = tmp_path_factory.mktemp("empty")
    migrate(settings_in(home).database_url)
    return home


@pytest.fixture(scope="session")
def served(empty_home: Path) -> Iterator[Served]:
    with serve(create_app(settings_in(empty_home), sweep=False)) as made:
        yield made


@pytest.fixture
def settings(tmp_path: Path, empty_home: Path) -> Settings:
    shutil.copytree(empty_home, tmp_path, dirs_exist_ok=True)
    return settings_in(tmp_path)


@pytest.fixture
def url(served: Served, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> str:
    """Address of an api on this test's home; ``DRIFTLINE_URL`` names it."""
    served.move_to(settings)
    monkeypatch.setenv("DRIFTLINE_URL", served.url)
    monkeypatch.setenv("DRIFTLINE_HOME", str(settings.home))
    monkeypatch.delenv("DRIFTLINE_TOKEN", raising=False)
    return served.url


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


@pytest.fixture(scope="session")
def finished_home(
    served: Served, empty_home: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, FinishedRun]:
    """A home with a finished run: curves, looks, items and a log. Built once; tests get copies."""
    home = tmp_path_factory.mktemp("finished")
    shutil.copytree(empty_home, home, dirs_exist_ok=True)
    settings = settings_in(home)
    served.move_to(settings)
    database = Database(settings.database_url)
    with httpx.Client(base_url=served.url) as http:
        run = Builder(http, database, settings).finished(name="shown")  # type: ignore[arg-type]
    database.dispose()
    served.app.state.service.db.dispose()
    return home, run


@pytest.fixture
def finished(finished_home: tuple[Path, FinishedRun], settings: Settings, url: str, served: Served) -> FinishedRun:
    """A finished run in this test's home."""
    home, run = finished_home
    shutil.copytree(home, settings.home, dirs_exist_ok=True)
    served.move_to(settings)  # building it may have moved the api elsewhere
    return run
