"""The schema: one line of revisions, equal to the models, safe to apply by several processes, never from behind."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import inspect, text

import migrations
from core.store.database import Database, make_engine
from core.store.errors import SchemaMismatch
from core.store.migrations_api import _config, current_revision, head_revision, migrate, require_head
from core.store.models import Base
from migrations.lock import migration_lock


def test_there_is_a_single_head() -> None:
    assert ScriptDirectory(migrations.__path__[0]).get_heads() == [head_revision()]


def test_migrated_schema_equals_the_models(db: Database) -> None:
    with db.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, Base.metadata) == []


def test_every_constraint_has_a_name() -> None:
    unnamed = [(table.name, c) for table in Base.metadata.tables.values() for c in table.constraints if c.name is None]
    assert unnamed == []


def test_migrating_twice_changes_nothing(empty_url: str) -> None:
    assert current_revision(empty_url) is None
    assert migrate(empty_url) == head_revision()
    assert migrate(empty_url) == current_revision(empty_url) == head_revision()


def test_going_down_to_nothing_and_up_again_works(empty_url: str) -> None:
    migrate(empty_url)
    command.downgrade(_config(empty_url), "base")
    engine = make_engine(empty_url)
    assert inspect(engine).get_table_names() == ["alembic_version"]
    engine.dispose()
    migrate(empty_url)
    require_head(empty_url)


def test_starts_that_migrate_at_once_all_succeed(empty_url: str) -> None:
    boot = f"from core.store.migrations_api import migrate; print(migrate({empty_url!r}))"
    processes = [subprocess.Popen([sys.executable, "-c", boot], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [process.communicate(timeout=120)[0].strip() for process in processes] == [head_revision()] * 2
    assert [process.returncode for process in processes] == [0] * 2


def test_a_database_at_head_is_not_locked(url: str) -> None:
    engine = make_engine(url)
    with migration_lock(engine), ThreadPoolExecutor(1) as pool:
        assert pool.submit(migrate, url).result(timeout=60) == head_revision()
    engine.dispose()


def test_the_lock_keeps_a_second_migration_waiting(empty_url: str) -> None:
    engine = make_engine(empty_url)
    with ThreadPoolExecutor(1) as pool:
        with migration_lock(engine):
            other = pool.submit(migrate, empty_url)
            with pytest.raises(TimeoutError):
                other.result(timeout=0.3)
            assert current_revision(empty_url) is None
        assert other.result(timeout=60) == head_revision()
    engine.dispose()


def test_a_database_from_the_future_is_refused(empty_url: str) -> None:
    migrate(empty_url)
    database = Database(empty_url)
    with database.write() as session:
        session.execute(text("UPDATE alembic_version SET version_num = 'f0f0f0'"))
    database.dispose()
    with pytest.raises(SchemaMismatch, match=r"f0f0f0.*newer version"):
        require_head(empty_url)
    with pytest.raises(SchemaMismatch, match="newer version"):
        migrate(empty_url)


def test_an_unmigrated_database_is_refused_with_the_remedy(empty_url: str) -> None:
    with pytest.raises(SchemaMismatch, match="migrate it first"):
        require_head(empty_url)
