"""Transactions, connections and column types, alike on both databases."""

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import delete, insert, select, text, update
from sqlalchemy.exc import DBAPIError, StatementError

from core.store import prespecs, prompts, runs
from core.store.database import Database, clock, now
from core.store.models import LogEntry, Run, Worker
from core.store.types import new_id


def _worker(name: str) -> dict[str, object]:
    return {"id": new_id(), "hostname": name, "pid": 1, "started_at": 1.0, "heartbeat_at": 1.0}


def test_a_unit_that_raises_leaves_nothing(db: Database) -> None:
    with pytest.raises(KeyError), db.write() as session:  # noqa: PT012 - the raise is part of the unit
        session.execute(insert(Worker).values(**_worker("gone")))
        raise KeyError
    with db.read() as session:
        assert session.scalars(select(Worker)).all() == []


def test_a_read_unit_cannot_write_and_the_next_write_unit_can(db: Database) -> None:
    with pytest.raises(DBAPIError), db.read() as session:
        session.execute(insert(Worker).values(**_worker("refused")))
    with db.write() as session:
        session.execute(insert(Worker).values(**_worker("kept")))
    with db.read() as session:
        assert session.scalars(select(Worker.hostname)).all() == ["kept"]


def test_a_unit_that_reads_first_waits_for_another_writer_instead_of_failing(db: Database) -> None:
    """With the driver's own transactions SQLite answers 'database is locked' at once here, whatever the timeout."""
    with db.write() as session:
        session.execute(insert(Worker).values(**_worker("count")))
    barrier = threading.Barrier(4)

    def increment(_: int) -> None:
        barrier.wait(timeout=30)
        for _ in range(10):
            with db.write() as session:
                pid = session.scalar(select(Worker.pid).with_for_update())
                session.execute(update(Worker).values(pid=pid + 1))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(increment, range(4)))
    with db.read() as session:
        assert session.scalar(select(Worker.pid)) == 41


def test_sqlite_is_set_up_for_several_processes(db: Database) -> None:
    if not db.is_sqlite:
        return  # PostgreSQL needs no settings
    names = ("journal_mode", "synchronous", "foreign_keys", "busy_timeout", "legacy_alter_table")
    with db.read() as session:
        found = {name: session.execute(text(f"PRAGMA {name}")).scalar() for name in names}
    assert found == {
        "journal_mode": "wal", "synchronous": 1, "foreign_keys": 1, "busy_timeout": 60000, "legacy_alter_table": 0
    }  # fmt: skip


def test_the_clock_is_utc_seconds_and_advances_within_a_transaction(db: Database) -> None:
    with db.write() as session:
        first = now(session)
        deadline = time.monotonic() + 10
        while (later := now(session)) <= first and time.monotonic() < deadline:
            pass
    assert first < later
    assert abs(first - time.time()) < 5
    assert abs(db.now() - time.time()) < 5


def test_the_clock_can_be_used_inside_a_statement(db: Database) -> None:
    with db.read() as session:
        assert session.scalar(select(clock() + 100.0 - clock())) == pytest.approx(100, abs=1)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_uses_connections_of_its_own(db: Database) -> None:
    assert db.now() > 0
    parent_engine = db.engine
    pid = os.fork()
    if pid == 0:
        good = False
        try:
            with db.write() as session:
                session.execute(insert(Worker).values(**_worker("child")))
            good = db.engine is not parent_engine
        finally:
            os._exit(0 if good else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert db.engine is parent_engine
    with db.read() as session:
        assert session.scalars(select(Worker.hostname)).all() == ["child"]


def test_nothing_is_opened_before_first_use(tmp_path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'later' / 'file.db'}")
    assert not (tmp_path / "later").exists()
    assert database.now() > 0
    assert (tmp_path / "later" / "file.db").exists()
    database.dispose()


@pytest.mark.parametrize("bad", ["sqlite://", "sqlite:///:memory:", "mysql://localhost/x"])
def test_urls_that_cannot_serve_are_refused_with_what_is_allowed(bad: str) -> None:
    with pytest.raises(ValueError, match="sqlite:///"):
        Database(bad)


def test_text_of_a_model_survives_nul_and_lone_surrogates(db: Database) -> None:
    with db.write() as session:
        prompts.put_many(session, [("c" * 64, [1, 2], "a\x00b\ud800c\U0001f600")])
    with db.read() as session:
        stored = prompts.get(session, "c" * 64)
    assert stored.token_ids == [1, 2]
    assert stored.text.startswith("a\ufffdb")
    assert stored.text.endswith("c\U0001f600")
    assert "\x00" not in stored.text


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_columns_of_numbers_refuse_what_is_not_finite(db: Database, value: float) -> None:
    with pytest.raises(StatementError, match="finite"), db.write() as session:
        session.execute(insert(Worker).values(**{**_worker("x"), "heartbeat_at": value}))


def test_json_refuses_numbers_that_are_not_finite(db: Database) -> None:
    with pytest.raises((ValueError, StatementError), match="JSON compliant"), db.write() as session:
        session.execute(insert(Worker).values(**_worker("x"), device={"gib": float("nan")}))


def test_deleting_a_row_that_others_refer_to_is_refused(db: Database, make_run) -> None:
    run = make_run()
    with pytest.raises(DBAPIError), db.write() as session:
        session.execute(delete(Run).where(Run.id == run.id))
    with db.read() as session:
        assert runs.get(session, run.id).id == run.id


@pytest.mark.parametrize("change", [update(LogEntry).values(type="report"), delete(LogEntry)], ids=["update", "delete"])
def test_the_log_refuses_to_be_changed(db: Database, change) -> None:
    with db.write() as session:
        prespecs.append_log(session, "report", {"n": 1})
    with pytest.raises(DBAPIError, match="append-only"), db.write() as session:
        session.execute(change)
    with db.read() as session:
        assert [entry.payload for entry in prespecs.log_page(session).items] == [{"n": 1}]
