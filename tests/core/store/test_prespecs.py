"""Prespecifications and the append-only log; `core.prespec.chain`, which shares no code with the store, is the oracle."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from core.prespec.chain import verify_log
from core.store import evaluations, events, looks, prespecs, queue, runs
from core.store.database import Database
from core.store.errors import FrozenTooLate, NotFound


def _freeze(db: Database, run_id: str | None = None, digest: str = "a"):
    with db.write() as session:
        return prespecs.freeze(
            session, document={"alpha": "0.05"}, canonical='{"alpha":"0.05"}', hash=digest * 64, automatic=True,
            exploratory=True, run_id=run_id,
        )  # fmt: skip


def _exported(db: Database) -> list[dict]:
    fields = ("seq", "type", "payload", "payload_hash", "previous_hash", "hash", "claimed_at")
    with db.read() as session:
        entries = prespecs.log_page(session, limit=1000).items
    return [{name: getattr(entry, name) for name in fields} for entry in entries]


def test_freezing_ties_the_run_the_document_and_the_log_together(db: Database, make_run) -> None:
    run = make_run()
    row = _freeze(db, run.id)
    with db.read() as session:
        assert runs.get(session, run.id).prespecification_id == row.id
        assert prespecs.get(session, row.id).document == {"alpha": "0.05"}
        assert events.page(session, run.id).items[-1].type == "prespec_frozen"
    (entry,) = _exported(db)
    assert (entry["seq"], entry["type"], entry["payload"]["hash"]) == (1, "prespec_frozen", "a" * 64)
    assert entry["claimed_at"] == row.frozen_at
    assert row.clock == "local"


def test_nothing_is_frozen_after_a_look(db: Database, held) -> None:
    with db.fenced(held.fence) as session:
        evaluation = evaluations.start(
            session, held.fence, step=1, purpose="look", model_ref="m", suite="holdout", mode="greedy", n_items=1
        )  # fmt: skip
        looks.add(
            session, held.fence, step=1, number=1, evaluation_id=evaluation, suite="holdout", n=1, lost=0, gained=0,
            state="watch",
        )  # fmt: skip
    with pytest.raises(FrozenTooLate, match=held.run_id):
        _freeze(db, held.run_id)
    assert _exported(db) == []


def test_an_amendment_is_appended_and_the_document_stays(db: Database) -> None:
    row = _freeze(db)
    with db.write() as session:
        prespecs.amend(session, row.id, {"python": "3.11", "threads": 2})
        prespecs.amend(session, row.id, {"share": 0.5})
    with db.read() as session:
        found = prespecs.get(session, row.id)
    assert (found.document, found.canonical) == (row.document, row.canonical)
    assert [entry["payload"] for entry in found.amendments] == [{"python": "3.11", "threads": 2}, {"share": 0.5}]
    assert [entry["seq"] for entry in found.amendments] == [2, 3]
    with pytest.raises(NotFound), db.write() as session:
        prespecs.amend(session, "nothing", {})


def test_the_log_verifies_by_an_independent_computation(db: Database) -> None:
    with db.write() as session:
        prespecs.append_log(
            session, "run_started", {"text": "e\u0301 \u00e9", "share": 0.1, "nested": [{"x": 1e-9}, None, True]}
        )
        prespecs.append_log(session, "stop_decision", {"n": 3})
    _freeze(db)
    exported = _exported(db)
    verification = verify_log(exported)
    assert verification.ok, verification.reason
    assert verification.head == exported[-1]["hash"]
    exported[0]["payload"]["share"] = "0.2"
    assert not verify_log(exported).ok


def test_writers_at_once_leave_one_unbroken_chain(db: Database) -> None:
    barrier = threading.Barrier(4)

    def write(number: int) -> None:
        barrier.wait(timeout=30)
        for entry in range(5):
            with db.write() as session:
                prespecs.append_log(session, "report", {"writer": number, "entry": entry})

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    exported = _exported(db)
    assert [entry["seq"] for entry in exported] == list(range(1, 21))
    assert verify_log(exported).ok


def test_unknown_entry_types_are_refused(db: Database) -> None:
    with pytest.raises(ValueError, match="rumour"), db.write() as session:
        prespecs.append_log(session, "rumour", {})


def test_prespecifications_are_listed_newest_first(db: Database) -> None:
    made = [_freeze(db, digest=digest).id for digest in "abc"]
    with db.read() as session:
        first = prespecs.page(session, limit=2)
        rest = prespecs.page(session, limit=2, after=first.next)
    assert [row.id for row in first.items + rest.items] == made[::-1]
    assert (first.has_more, rest.has_more) == (True, False)


def test_a_drained_run_keeps_its_prespecification(db: Database, held, claim) -> None:
    row = _freeze(db, held.run_id)
    with db.fenced(held.fence) as session:
        queue.interrupt(session, held.fence, reason="drained", counted=False)
    claim()
    with db.read() as session:
        assert runs.get(session, held.run_id).prespecification_id == row.id
