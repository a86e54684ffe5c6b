"""Bring a database to this code's schema, or say that it does not fit. The revisions are in `migrations/`.

`migrate` is for the `migrate` command and for the embedded start; every other process calls `require_head` and refuses to
start on another schema.
"""

import threading
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import pool

import migrations
from core.store.database import make_engine
from core.store.errors import SchemaMismatch

# Alembic keeps its context in module globals; between processes the database's lock decides.
_one_thread = threading.Lock()


def migrate(url: str) -> str:
    """Upgrade the database to the head revision and return it; any number of processes may do so at once.

    Nothing is locked when it is there already. Raises :class:`SchemaMismatch` when the database is ahead of this code.
    """
    if current_revision(url) != head_revision():
        _refuse_ahead(current_revision(url))
        with _one_thread:
            command.upgrade(_config(url), "head")
    return head_revision()


def require_head(url: str) -> None:
    """Raise :class:`SchemaMismatch` unless the database is at this code's revision."""
    current = current_revision(url)
    _refuse_ahead(current)
    if current != head_revision():
        raise SchemaMismatch(
            f"the database is at revision {current}, this code needs {head_revision()}; migrate it first"
        )


def head_revision() -> str:
    """Return the newest revision this code knows; raises SchemaMismatch when the line of revisions forks."""
    heads = _scripts().get_heads()
    if len(heads) != 1:
        raise SchemaMismatch(f"the migrations have {len(heads)} heads ({', '.join(heads)}); there must be one")
    return heads[0]


def current_revision(url: str) -> str | None:
    """Return the database's revision, None when it has no tables yet."""
    engine = make_engine(url, poolclass=pool.NullPool)
    with engine.connect() as connection:
        return MigrationContext.configure(connection).get_current_revision()


def _refuse_ahead(current: str | None) -> None:
    known = {script.revision for script in _scripts().walk_revisions()}
    if current is not None and current not in known:
        raise SchemaMismatch(
            f"the database is at revision {current}, which this code does not know: it was migrated by a newer version. "
            "Start that version, or restore a backup"
        )


def _config(url: str) -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__path__[0])).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["url"] = url
    return config


def _scripts() -> ScriptDirectory:
    return ScriptDirectory(migrations.__path__[0])
