"""Alembic's entry: connect, take the migration lock, run the revisions.

Not for offline SQL scripts: batch mode on SQLite reads the real tables.
"""

from alembic import context
from sqlalchemy import Connection, Engine, pool

from core.settings import Settings
from core.store.database import make_engine
from core.store.models import Base
from migrations.lock import migration_lock


def main() -> None:
    """Run what the command asked for, alone."""
    if context.is_offline_mode():
        raise SystemExit("migrations need a database connection; the --sql mode is not supported")
    url = context.config.attributes.get("url") or Settings.from_env().database_url
    engine = make_engine(url, poolclass=pool.NullPool)
    with migration_lock(engine):
        run(engine)


def run(engine: Engine) -> None:
    """Run the revisions in one transaction (both databases have transactional DDL, SQLite because we begin ourselves)."""
    with engine.connect() as connection:
        sqlite = engine.dialect.name == "sqlite"
        if sqlite:
            # Batch mode copies a table and drops the old one; with foreign keys on, the drop would cascade into its children.
            _pragma(connection, "foreign_keys = OFF")
        context.configure(
            connection=connection, target_metadata=Base.metadata, render_as_batch=sqlite, transactional_ddl=True,
            compare_type=True,
        )  # fmt: skip
        with context.begin_transaction():
            context.run_migrations()
            if sqlite:
                broken = connection.exec_driver_sql("PRAGMA foreign_key_check").fetchall()
                if broken:
                    raise RuntimeError(f"the migration left dangling references, so it is rolled back: {broken[:5]}")
        if sqlite:
            _pragma(connection, "foreign_keys = ON")


def _pragma(connection: Connection, setting: str) -> None:
    # On the driver's connection: within a transaction SQLite ignores this pragma, and SQLAlchemy would begin one.
    driver = connection.connection.driver_connection
    assert driver is not None
    driver.execute(f"PRAGMA {setting}")


main()
