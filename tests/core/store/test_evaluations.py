"""Evaluations with their item records, looks, and the checkpoints they point at."""

import pytest
from sqlalchemy import select
from sqlalchemy.exc import DBAPIError

from core.store import checkpoints, evaluations, events, looks, queue
from core.store.database import Database
from core.store.errors import BadCursor, BadFilter, NotFound
from core.store.models import ItemRecord


def _start(session, fence, **changes) -> str:
    values = {"step": 0, "purpose": "base", "model_ref": "m", "suite": "holdout", "mode": "greedy", "n_items": 4}
    return evaluations.start(session, fence, **(values | changes))


def _records(verdicts: str, sample: int = 0) -> list[dict]:
    names = {"c": "correct", "w": "wrong", "n": "no_answer", "i": "infra_error"}
    return [
        {
            "item_id": f"item-{position}", "position": position, "sample": sample, "prompt_sha256": "a" * 64,
            "token_ids": [1, 2], "text": "x", "gold": "4", "extracted": "4", "verdict": names[letter], "reason": None,
            "finish_reason": "stop", "n_tokens": 2, "verifier_version": "1", "verify_ms": 0.5,
        }
        for position, letter in enumerate(verdicts)
    ]  # fmt: skip


def _evaluated(db: Database, held, verdicts: str, **changes) -> str:
    with db.fenced(held.fence) as session:
        evaluation = _start(session, held.fence, **changes)
        evaluations.add_records(session, held.fence, evaluation, _records(verdicts))
        evaluations.finish(session, held.fence, evaluation, accuracy=0.5, ci_low=0.1, ci_high=0.9, correct=2)
    return evaluation


def test_an_evaluation_counts_once_finished(db: Database, held) -> None:
    with db.fenced(held.fence) as session:
        evaluation = _start(session, held.fence, params={"max_tokens": 8}, engine={"name": "transformers"})
    with db.read() as session:
        assert evaluations.get(session, evaluation).status == "running"
        assert evaluations.base_evaluations(session, held.run_id, "holdout") == []
    with db.fenced(held.fence) as session:
        evaluations.finish(session, held.fence, evaluation, accuracy=0.25, mean_tokens=3.5)
    with db.read() as session:
        row = evaluations.get(session, evaluation)
        assert [found.id for found in evaluations.base_evaluations(session, held.run_id, "holdout")] == [evaluation]
    assert (row.status, row.accuracy, row.mean_tokens, row.params) == ("finished", 0.25, 3.5, {"max_tokens": 8})


def test_base_runs_come_in_order_and_only_for_their_suite(db: Database, held) -> None:
    repeat = _evaluated(db, held, "c", purpose="base_repeat")
    base = _evaluated(db, held, "c")
    _evaluated(db, held, "c", suite="math500")
    _evaluated(db, held, "c", purpose="look", step=10)
    with db.read() as session:
        assert [row.id for row in evaluations.base_evaluations(session, held.run_id, "holdout")] == [base, repeat]
        assert len(evaluations.list_for_run(session, held.run_id, suite="holdout")) == 3
        assert len(evaluations.list_for_run(session, held.run_id, purpose="look")) == 1


def test_a_finished_or_foreign_evaluation_takes_no_records(db: Database, held, make_run, claim) -> None:
    done = _evaluated(db, held, "c")
    with pytest.raises(NotFound), db.fenced(held.fence) as session:
        evaluations.add_records(session, held.fence, done, _records("c"))
    with db.fenced(held.fence) as session:
        mine = _start(session, held.fence)
    make_run()
    other = claim()
    with pytest.raises(NotFound), db.fenced(other.fence) as session:
        evaluations.add_records(session, other.fence, mine, _records("c"))


def test_records_are_checked(db: Database, held) -> None:
    with db.fenced(held.fence) as session:
        evaluation = _start(session, held.fence)
    with pytest.raises(ValueError, match="verdikt"), db.fenced(held.fence) as session:
        evaluations.add_records(session, held.fence, evaluation, [{"verdikt": "correct"}])
    with pytest.raises(DBAPIError), db.fenced(held.fence) as session:
        evaluations.add_records(session, held.fence, evaluation, _records("c") + _records("w"))
    with db.read() as session:
        assert session.scalars(select(ItemRecord)).all() == []


def test_verdicts_are_by_item_and_sample(db: Database, held) -> None:
    with db.fenced(held.fence) as session:
        evaluation = _start(session, held.fence, samples=2)
        evaluations.add_records(session, held.fence, evaluation, _records("wc", sample=1))
        evaluations.add_records(session, held.fence, evaluation, _records("cn", sample=0))
    with db.read() as session:
        assert evaluations.verdicts(session, evaluation) == {
            "item-0": ["correct", "wrong"], "item-1": ["no_answer", "correct"]
        }  # fmt: skip


def test_unfinished_evaluations_are_discarded_and_finished_ones_stay(db: Database, held, claim) -> None:
    kept = _evaluated(db, held, "cw")
    with db.fenced(held.fence) as session:
        evaluations.add_records(session, held.fence, _start(session, held.fence, purpose="look", step=5), _records("c"))
        queue.interrupt(session, held.fence, reason="test")
    second = claim()
    with db.fenced(second.fence) as session:
        assert evaluations.discard_unfinished(session, second.fence) == 1
        assert evaluations.discard_unfinished(session, second.fence) == 0
    with db.read() as session:
        assert [row.id for row in evaluations.list_for_run(session, held.run_id, superseded=True)] == [kept]
        assert len(session.scalars(select(ItemRecord)).all()) == 2


#                base: c c w w i c      now: c w c w w i
FLIPS = [
    ("item-0", "same"),
    ("item-1", "lost"),
    ("item-2", "gained"),
    ("item-3", "same"),
    ("item-4", "same"),
    ("item-5", "same"),
]


def test_items_are_compared_with_the_base_and_infrastructure_failures_are_no_flips(db: Database, held) -> None:
    base, now = _evaluated(db, held, "ccwwic"), _evaluated(db, held, "cwcwwi", purpose="look", step=10)
    with db.read() as session:
        page = evaluations.items_page(session, now, against=base)
        lost = evaluations.items_page(session, now, against=base, flip="lost")
        gained = evaluations.items_page(session, now, against=base, flip="gained")
        wrong = evaluations.items_page(session, now, against=base, verdict="wrong")
        alone = evaluations.items_page(session, now)
    assert [(item.record.item_id, item.flip) for item in page.items] == FLIPS
    assert [(item.record.item_id, item.base_verdict) for item in lost.items] == [("item-1", "correct")]
    assert [item.record.item_id for item in gained.items] == ["item-2"]
    assert [item.record.item_id for item in wrong.items] == ["item-1", "item-3", "item-4"]
    assert {(item.base_verdict, item.flip) for item in alone.items} == {(None, None)}


def test_item_pages_follow_the_suites_order_also_while_records_arrive(db: Database, held) -> None:
    with db.fenced(held.fence) as session:
        evaluation = _start(session, held.fence)
        records = _records("cccccc")
        evaluations.add_records(session, held.fence, evaluation, [records[4], records[1], records[2]])
        first = evaluations.items_page(session, evaluation, limit=2)
        evaluations.add_records(session, held.fence, evaluation, [records[0], records[3], records[5]])
        rest = evaluations.items_page(session, evaluation, limit=10, after=first.next)
    assert [item.record.position for item in first.items] == [1, 2]
    assert [item.record.position for item in rest.items] == [3, 4, 5]
    assert not rest.has_more


def test_a_flip_without_a_counterpart_and_bad_values_are_refused(db: Database, held) -> None:
    evaluation = _evaluated(db, held, "c")
    with db.read() as session:
        with pytest.raises(BadFilter, match="against"):
            evaluations.items_page(session, evaluation, flip="lost")
        with pytest.raises(BadFilter, match="lost, gained, same"):
            evaluations.items_page(session, evaluation, flip="changed", against=evaluation)
        with pytest.raises(BadCursor):
            evaluations.items_page(session, evaluation, after="3")
        with pytest.raises(NotFound):
            evaluations.items_page(session, "nothing")


def _checkpoint(session, fence, step: int, sha: str):
    return checkpoints.add(
        session, fence, step=step, path=f"p{step}", sha256=sha * 64,
        files={"model.safetensors": {"bytes": 3 << 32, "sha256": "e" * 64}},
        bytes=3 << 32, has_optimizer=True, provenance={"kind": "train"},
    )  # fmt: skip


def _look(session, fence, step: int, accuracy: float | None, sha: str | None, **changes):
    evaluation = _start(session, fence, purpose="look", step=step)
    values = {
        "suite": "holdout",
        "n": 16,
        "lost": 1.5,
        "gained": 0,
        "state": "no_damage_shown",
        "number": step,
    } | changes
    return looks.add(
        session, fence, step=step, evaluation_id=evaluation, accuracy=accuracy, checkpoint_sha256=sha and sha * 64, **values
    )  # fmt: skip


def test_a_checkpoint_is_found_with_its_files(db: Database, held) -> None:
    with db.fenced(held.fence) as session:
        made = _checkpoint(session, held.fence, 4, "1")
        _checkpoint(session, held.fence, 8, "2")
    with db.read() as session:
        assert checkpoints.by_id(session, made.id).bytes == 3 << 32  # more than 32 bits
        assert [(file.name, file.bytes) for file in checkpoints.files(session, made.id)] == [
            ("model.safetensors", 3 << 32)
        ]
        assert checkpoints.latest(session, held.run_id).step == 8
        assert checkpoints.at_step(session, held.run_id, 4).id == made.id
        assert checkpoints.at_step(session, held.run_id, 5) is None
        with pytest.raises(NotFound):
            checkpoints.by_id(session, "nothing")


def test_a_deleted_checkpoint_is_no_candidate_but_stays_on_record(db: Database, held) -> None:
    with db.fenced(held.fence) as session:
        _checkpoint(session, held.fence, 4, "1")
        gone = _checkpoint(session, held.fence, 8, "2")
    for _ in range(2):
        with db.write() as session:
            checkpoints.mark_deleted(session, gone.id)
    with db.read() as session:
        assert checkpoints.latest(session, held.run_id).step == 4
        assert [row.step for row in checkpoints.list_(session, held.run_id)] == [4]
        assert [row.step for row in checkpoints.list_(session, held.run_id, deleted=True)] == [4, 8]
        assert [e.type for e in events.page(session, held.run_id).items].count("checkpoint_deleted") == 1


def test_the_best_checkpoint_has_the_highest_accuracy_at_its_look(db: Database, held) -> None:
    with db.fenced(held.fence) as session:
        assert checkpoints.best(session, held.run_id) is None
        for step, sha in ((4, "1"), (8, "2"), (12, "3"), (16, "4"), (20, "5")):
            _checkpoint(session, held.fence, step, sha)
        _look(session, held.fence, 4, 0.5, "1")
        _look(session, held.fence, 8, 0.7, "2")
        _look(session, held.fence, 12, 0.7, "3")
        _look(session, held.fence, 16, 0.9, "f")  # another model than the checkpoint's
        _look(session, held.fence, 20, 0.99, "5", suite="other")
        _look(session, held.fence, 24, 0.95, None)
    with db.read() as session:
        assert checkpoints.best(session, held.run_id).step == 8
        assert checkpoints.best(session, held.run_id, suite="other").step == 20


def test_looks_come_by_step_with_what_they_used(db: Database, held) -> None:
    draw = [{"item_id": "i", "b": 1.0, "c": 0.0, "d": 1.0}]
    with db.fenced(held.fence) as session:
        _look(
            session,
            held.fence,
            8,
            0.5,
            "2",
            draw=draw,
            rule_state={"log_m": -1.25},
            d_histogram={"1.0": 1},
            statistic=0.8,
        )
        _look(session, held.fence, 4, 0.6, "1")
        _look(session, held.fence, 8, 0.5, "2", reference="best")
    with db.read() as session:
        found = looks.list_(session, held.run_id, reference="base")
        assert [look.step for look in found] == [4, 8]
        assert (found[1].draw, found[1].rule_state, found[1].d_histogram) == (draw, {"log_m": -1.25}, {"1.0": 1})
        assert found[1].lost == 1.5
        assert looks.last(session, held.run_id, reference="base").id == found[1].id
        assert len(looks.list_(session, held.run_id, suite="holdout")) == 3
        assert looks.last(session, held.run_id, suite="absent") is None


def test_the_same_look_cannot_be_recorded_twice(db: Database, held) -> None:
    with db.fenced(held.fence) as session:
        _look(session, held.fence, 4, 0.6, "1")
    with pytest.raises(DBAPIError), db.fenced(held.fence) as session:
        _look(session, held.fence, 4, 0.6, "1")
