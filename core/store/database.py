"""The engine and its transactions, for SQLite and PostgreSQL alike.

One `Database` per process and URL; it opens nothing until first used and opens anew after a fork. Three ways in: `read()`
(refuses to write), `write()` (one unit, committed on a clean exit) and `fenced()` (a write of one attempt). Whoever opens the
unit owns its commit; repositories never commit. Keep units short: SQLite has one writer at a time.

SQLite is driven by hand, since its driver's own transactions read first and then fail at once, without waiting, when another
connection wrote meanwhile: the driver is kept in autocommit, writes begin with BEGIN IMMEDIATE, and read units
are `query_only`, so no transaction ever tries to become a writer halfway.
"""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, create_engine, event, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL, Connection, make_url
from sqlalchemy.orm import Session

from core.store.fencing import Fence, require
from core.store.types import clock, to_json

__all__ = ["Database", "Fence", "clock", "insert_for", "make_engine", "normal_url", "now", "serialise"]

BUSY_TIMEOUT_MS = 60_000
MODE = "driftline_mode"


class Database:
    """A database by URL. Safe to share between threads; after a fork the child gets its own connections."""

    def __init__(self, url: str) -> None:
        """Remember ``url`` (``sqlite:///path`` or ``postgresql://...``); nothing is opened yet."""
        self.url = normal_url(url)
        self._engines: dict[int, Engine] = {}

    @property
    def engine(self) -> Engine:
        """This process's engine, made on first use."""
        pid = os.getpid()
        engine = self._engines.get(pid)
        if engine is None:
            for other in [known for known in self._engines if known != pid]:
                # The parent still uses these sockets: forget them without closing.
                self._engines.pop(other).dispose(close=False)
            # An engine that loses the race of two threads has no connection yet and costs nothing.
            engine = self._engines.setdefault(pid, make_engine(self.url))
        return engine

    @contextmanager
    def read(self) -> Iterator[Session]:
        """Yield a session that can only read; it ends with a rollback."""
        options = {MODE: "read"} if self.is_sqlite else {"postgresql_readonly": True}
        with Session(self.engine.execution_options(**options), expire_on_commit=False, autoflush=False) as session:
            yield session

    @contextmanager
    def write(self) -> Iterator[Session]:
        """Yield a session for one unit of writing; commits on a clean exit, rolls back on an exception."""
        engine = self.engine.execution_options(**{MODE: "write"}) if self.is_sqlite else self.engine
        with Session(engine, expire_on_commit=False) as session, session.begin():
            yield session

    @contextmanager
    def fenced(self, fence: Fence) -> Iterator[Session]:
        """Yield a writing session for the attempt that holds ``fence``.

        Raises :class:`core.store.errors.StaleAttempt`, before anything is written, when the fence is not the run's present one.
        """
        with self.write() as session:
            require(session, fence)
            yield session

    @property
    def is_sqlite(self) -> bool:
        """Whether this is SQLite rather than PostgreSQL."""
        return self.url.get_backend_name() == "sqlite"

    def now(self) -> float:
        """Return the database's present time in seconds since 1970 (UTC)."""
        with self.read() as session:
            return now(session)

    def dispose(self) -> None:
        """Close this process's pooled connections; the next use opens new ones."""
        engine = self._engines.pop(os.getpid(), None)
        if engine is not None:
            engine.dispose()


def now(session: Session) -> float:
    """Return the database's present time; every stored time comes from here or from :class:`clock` inside a statement."""
    return float(session.execute(select(clock())).scalar_one())


def serialise(session: Session, name: str) -> None:
    """Let one transaction at a time pass for ``name`` until it ends. SQLite's writers already are one at a time."""
    if session.get_bind().dialect.name == "postgresql":
        session.connection().exec_driver_sql("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (name,))


def insert_for(session: Session) -> Any:
    """Return the dialect's INSERT construct, the one that has ON CONFLICT; both have it alike."""
    return postgresql.insert if session.get_bind().dialect.name == "postgresql" else sqlite.insert


def normal_url(url: str | URL) -> URL:
    """Return ``url`` with the driver this project uses; raises ValueError for what it cannot use."""
    parsed = make_url(url)
    match parsed.get_backend_name():
        case "sqlite":
            if parsed.database in (None, "", ":memory:"):
                raise ValueError(
                    "the database URL names SQLite in memory, which several processes cannot share; name a file, "
                    "for example sqlite:///driftline.db"
                )
            return parsed.set(drivername="sqlite")
        case "postgresql" | "postgres":
            return parsed.set(drivername="postgresql+psycopg")
        case other:
            raise ValueError(f"the database URL begins with {other!r}; allowed are sqlite:///FILE and postgresql://...")


def make_engine(url: str | URL, **options: Any) -> Engine:
    """Create an engine with this project's connection settings; ``options`` go to SQLAlchemy's `create_engine`."""
    parsed = normal_url(url)
    if parsed.get_backend_name() != "sqlite":
        return create_engine(parsed, json_serializer=to_json, pool_pre_ping=True, **options)
    Path(str(parsed.database)).expanduser().resolve().parent.mkdir(parents=True, exist_ok=True)
    engine = create_engine(parsed, json_serializer=to_json, **options)
    event.listen(engine, "connect", _on_sqlite_connect)
    event.listen(engine, "begin", _on_sqlite_begin)
    return engine


def _on_sqlite_connect(connection: sqlite3.Connection, _record: object) -> None:
    connection.isolation_level = None
    # The timeout first: switching a fresh file to WAL may itself meet another process doing so.
    connection.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA legacy_alter_table = OFF")


def _on_sqlite_begin(connection: Connection) -> None:
    reading = connection.get_execution_options().get(MODE) == "read"
    connection.exec_driver_sql(f"PRAGMA query_only = {int(reading)}")
    connection.exec_driver_sql("BEGIN" if reading else "BEGIN IMMEDIATE")
