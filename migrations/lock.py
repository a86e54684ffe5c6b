"""One migration at a time, however many processes boot at once. It guards the schema only, not the data.

PostgreSQL: a session advisory lock on a connection of its own in autocommit, since a transaction's lock would be lost with
the first commit inside a migration. SQLite: BEGIN IMMEDIATE on a file beside the database, since the database's own
write lock must stay free for the migration itself.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Engine

_KEY = 0x64726966746C696E  # "driftlin"
_WAIT_S = 600.0


@contextmanager
def migration_lock(engine: Engine) -> Iterator[None]:
    """Hold the lock of ``engine``'s database; waits for the present holder."""
    if engine.dialect.name == "sqlite":
        path = Path(f"{engine.url.database}.migrate-lock")
        connection = sqlite3.connect(path, timeout=_WAIT_S, isolation_level=None)
        try:
            connection.execute("BEGIN IMMEDIATE")
            yield
        finally:
            connection.close()
        return
    with engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection_:
        connection_.exec_driver_sql("SELECT pg_advisory_lock(%s)", (_KEY,))
        try:
            yield
        finally:
            connection_.exec_driver_sql("SELECT pg_advisory_unlock(%s)", (_KEY,))
