"""Finding, listing, cancelling, deleting and placing runs."""

import pytest
from sqlalchemy import select

from core.store import checkpoints, events, looks, metrics, queue, runs
from core.store.database import Database, now
from core.store.errors import Ambiguous, BadCursor, IllegalTransition, NotFound
from core.store.models import Metric, Outbox, Run


def test_a_run_is_created_with_its_doorbell_tags_and_event(db: Database, make_run) -> None:
    run = make_run(tags=["b", "a", "b"], name="demo")
    with db.read() as session:
        assert runs.tags_of(session, [run.id]) == {run.id: ["a", "b"]}
        assert session.scalars(select(Outbox.run_id)).all() == [run.id]
        assert [event.type for event in events.page(session, run.id).items] == ["run_created"]
        found = runs.get(session, run.id)
    assert (found.state, found.attempt, found.fence, found.run_of_family) == ("queued", 0, 0, 1)
    assert len(run.id) == 12


def test_runs_of_a_family_are_numbered_deleted_ones_too(db: Database, make_run) -> None:
    first = make_run()
    with db.write() as session:
        runs.request_cancel(session, first.id)
        runs.delete(session, first.id)
    assert make_run().run_of_family == 2
    assert make_run(family_hash="c" * 64).run_of_family == 1


def test_a_unique_prefix_finds_the_run_and_others_say_why_not(db: Database) -> None:
    plain = {"kind": "train", "name": "n", "recipe": {}, "submitted": {}, "recipe_hash": "r", "family_hash": "f"}
    with db.write() as session:
        session.add_all([Run(id=run_id, created_at=1.0, **plain) for run_id in ("abc000000001", "abd000000002")])
    with db.read() as session:
        assert runs.get(session, "abc").id == "abc000000001"
        assert runs.get(session, "abd000000002").id == "abd000000002"
        with pytest.raises(Ambiguous, match="abc000000001, abd000000002"):
            runs.get(session, "ab")
        for missing in ("", "ffff", "%", "_bc", "ABC", "abc0000000011", "../x"):
            with pytest.raises(NotFound):
                runs.get(session, missing)


def test_pages_are_stable_under_inserts(db: Database, make_run) -> None:
    made = [make_run().id for _ in range(5)]
    with db.read() as session:
        first = runs.list_page(session, limit=2)
    make_run()
    with db.read() as session:
        second = runs.list_page(session, limit=2, after=first.next)
        third = runs.list_page(session, limit=2, after=second.next)
    seen = [run.id for page in (first, second, third) for run in page.items]
    assert seen == made[::-1]
    assert (first.has_more, third.has_more, third.next) == (True, False, None)


def test_listing_filters_by_kind_state_tag_model_and_time(db: Database, make_run) -> None:
    train, evaluation = make_run(tags=["x"]), make_run(kind="eval", model="other", tags=["x", "y"])
    with db.write() as session:
        runs.request_cancel(session, evaluation.id)

    def listed(**filters) -> list[str]:
        with db.read() as session:
            return [run.id for run in runs.list_page(session, **filters).items]

    assert (
        listed(kind="eval") == listed(state="cancelled") == listed(tag="y") == listed(model="other") == [evaluation.id]
    )
    assert listed(tag="x") == [evaluation.id, train.id]
    assert listed(created_from=evaluation.created_at, created_to=evaluation.created_at + 1) == [evaluation.id]
    assert listed(created_to=train.created_at) == []
    assert listed(tag="x", kind="train", state="cancelled") == []


@pytest.mark.parametrize(
    "bad", [{"after": "x"}, {"after": "-1"}, {"after": "1:2"}, {"limit": 0}, {"limit": 1001}, {"after": "9" * 30}]
)
def test_bad_cursors_and_limits_are_refused(db: Database, bad: dict) -> None:
    with pytest.raises(BadCursor), db.read() as session:
        runs.list_page(session, **bad)


def test_a_fork_keeps_its_parent_and_its_difference(db: Database, make_run) -> None:
    parent = make_run()
    child = make_run(parent_id=parent.id, parent_step=20, recipe_diff={"learning_rate": [1, 2]}, exploratory=True)
    with db.read() as session:
        assert [run.id for run in runs.children(session, parent.id)] == [child.id]
        found = runs.get(session, child.id)
    assert (found.parent_step, found.recipe_diff, found.exploratory) == (20, {"learning_rate": [1, 2]}, True)


def test_coming_after_an_unknown_run_is_refused_and_stores_nothing(db: Database, make_run) -> None:
    with pytest.raises(NotFound, match="ffff"):
        make_run(after=["ffff"])
    with db.read() as session:
        assert runs.list_page(session).items == []


def test_cancelling_a_queued_run_needs_no_worker(db: Database, make_run) -> None:
    run = make_run()
    with db.write() as session:
        assert runs.request_cancel(session, run.id).state == "cancelled"
    with db.write() as session:
        assert queue.claim(session, worker_id="0" * 12, device=None, ttl=60) is None
        found = runs.get(session, run.id)
    assert found.cancel_requested_at is not None
    assert found.finished_at is not None


def test_pause_and_resume_go_through_the_queue_as_a_new_attempt(db: Database, held, claim) -> None:
    with db.write() as session:
        assert runs.request_pause(session, held.run_id).state == "pausing"
    with db.fenced(held.fence) as session:
        assert queue.pause_done(session, held.fence).state == "paused"
    with db.write() as session:
        queue.outbox_sent(session, [row.id for row in queue.outbox_pending(session)])
        resumed = runs.resume(session, held.run_id)
        assert (resumed.state, resumed.pause_requested_at) == ("queued", None)
        assert len(queue.outbox_pending(session)) == 1
    assert claim().attempt == 2


def test_deleting_leaves_a_tombstone_with_its_events(db: Database, held) -> None:
    with db.fenced(held.fence) as session:
        metrics.record(session, held.fence, 1, {"loss": 1.0})
        checkpoints.add(
            session, held.fence, step=1, path="p", sha256="s", files={}, bytes=1, has_optimizer=True, provenance={}
        )  # fmt: skip
    with pytest.raises(IllegalTransition, match="cancel it first"), db.write() as session:
        runs.delete(session, held.run_id)
    with db.fenced(held.fence) as session:
        queue.finish(session, held.fence, state="succeeded")
    with db.write() as session:
        runs.delete(session, held.run_id)
    with db.read() as session:
        with pytest.raises(NotFound):
            runs.get(session, held.run_id)
        assert runs.list_page(session).items == []
        assert session.scalars(select(Metric)).all() == []
        assert checkpoints.list_(session, held.run_id) == []
        assert runs.get(session, held.run_id, deleted=True).deleted_at is not None
        assert [event.type for event in events.page(session, held.run_id).items][-1] == "run_deleted"
        assert looks.list_(session, held.run_id) == []


def test_progress_keeps_the_last_finished_step(db: Database, held) -> None:
    with db.fenced(held.fence) as session:
        runs.progress(session, held.fence, phase="train", done=3, total=12, unit="step", step=3)
        runs.progress(session, held.fence, phase="final look", done=1, total=80, unit="item")
    with db.read() as session:
        run = runs.get(session, held.run_id)
    assert (run.phase, run.progress_done, run.progress_total, run.progress_unit, run.step) == (
        "final look",
        1,
        80,
        "item",
        3,
    )


def test_the_place_in_the_queue_says_why_a_run_waits(db: Database, make_run, claim) -> None:
    first, second = make_run(), make_run()
    blocked = make_run(after=[first.id])

    def place(run: Run) -> tuple[int, str]:
        with db.read() as session:
            return runs.queue_position(session, run.id)

    assert place(first) == (1, "no worker is alive; start one")
    assert place(second)[0] == 2
    assert "1 run with higher priority" in place(second)[1]
    assert place(blocked)[0] == 0
    assert first.id in place(blocked)[1]
    with db.write() as session:
        worker = queue.register_worker(session, hostname="h", pid=1, device=None)
        found = queue.claim(session, worker_id=worker, device=None, ttl=60)
    assert place(first) == (0, "the run is running")
    assert place(second) == (1, f"next; every worker is busy (run {first.id})")
    with db.fenced(found.fence) as session:
        queue.finish(session, found.fence, state="failed")
    assert place(blocked) == (0, "the run is failed")
    assert place(second) == (1, "next; a worker will claim it shortly")
    with db.write() as session:
        queue.mark_unready(session, worker, "the driver is gone")
    assert place(second) == (1, "every worker that could take it has stopped claiming: the driver is gone")


def test_the_place_in_the_queue_names_the_device_that_no_worker_has(db: Database, make_run) -> None:
    def place(run: Run) -> tuple[int, str]:
        with db.read() as session:
            return runs.queue_position(session, run.id)

    on_card, on_cpu, anywhere = (
        make_run(recipe={"device": {"kind": "cuda"}}),
        make_run(recipe={"device": {"kind": "cpu"}}),
        make_run(),
    )
    assert (on_card.device_kind, on_cpu.device_kind, anywhere.device_kind) == ("cuda", "cpu", None)
    with db.write() as session:
        queue.register_worker(session, hostname="h", pid=1, device={"kind": "cpu"})
    assert place(on_card) == (1, "no live worker has a CUDA card; start one with DRIFTLINE_GPU naming the card")
    assert place(on_cpu) == (1, "next; a worker will claim it shortly")  # the run for a card is not in its way
    assert place(anywhere)[0] == 3
    with db.write() as session:
        queue.register_worker(session, hostname="h", pid=2, device={"kind": "cuda"})
    assert place(on_card) == (1, "next; a worker will claim it shortly")


def test_times_come_from_the_database(db: Database, make_run) -> None:
    with db.read() as session:
        before = now(session)
    run = make_run()
    with db.read() as session:
        assert before <= run.created_at <= now(session)
