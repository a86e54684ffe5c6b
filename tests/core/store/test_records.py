"""Rollouts, prompts, analyses, tokens, idempotency keys."""

import math

import pytest
from sqlalchemy import update

from core.store import analyses, counts, idempotency, prompts, queue, rollouts, runs, tokens
from core.store.database import Database, now
from core.store.errors import NotFound
from core.store.models import IdempotencyKey
from core.store.types import new_id


def _sample(number: int, **changes) -> dict:
    plain = {
        "group_index": number // 2, "item_id": f"item-{number // 2}", "sample": number % 2, "prompt_sha256": "a" * 64,
        "token_ids": [number], "text": f"answer {number}", "reward": number / 4, "reward_terms": {"math": number / 4},
        "verdict": "correct" if number % 2 else "wrong", "advantage": 0.5, "logp_mean": -1.0, "n_tokens": 10 * number,
        "finish_reason": "stop", "zero_variance": number >= 2, "weights_version": 3,
    }  # fmt: skip
    return plain | changes


def test_rollouts_are_filtered_and_paged_by_step(db: Database, held) -> None:
    with db.fenced(held.fence) as session:
        rollouts.add_step(session, held.fence, 2, [_sample(n) for n in range(4)])
        rollouts.add_step(session, held.fence, 1, [_sample(n, text="50%_Done") for n in range(2)])

    def found(**filters) -> list[tuple[int, int]]:
        with db.read() as session:
            rows = rollouts.page(session, held.run_id, **filters).items
        return [(row.step, row.token_ids[0]) for row in rows]

    everything = [(1, 0), (1, 1), (2, 0), (2, 1), (2, 2), (2, 3)]
    assert found() == everything
    assert found(step=2, verdict="correct") == [(2, 1), (2, 3)]
    assert found(reward_min=0.25, reward_max=0.5) == [(1, 1), (2, 1), (2, 2)]
    assert found(reward_max=0.0) == [(1, 0), (2, 0)]
    assert found(zero_variance=True) == [(2, 2), (2, 3)]
    assert found(zero_variance=False, step=2) == [(2, 0), (2, 1)]
    assert found(tokens_min=20, tokens_max=20) == [(2, 2)]
    assert found(text="ANSWER 3") == [(2, 3)]
    assert found(text="%_done") == [(1, 0), (1, 1)]
    assert found(text="a%r") == []
    with db.read() as session:
        first = rollouts.page(session, held.run_id, limit=4)
        rest = rollouts.page(session, held.run_id, limit=4, after=first.next)
    assert [(row.step, row.token_ids[0]) for row in first.items + rest.items] == everything


def test_a_step_done_again_by_a_later_attempt_replaces_the_samples(db: Database, held, claim) -> None:
    with db.fenced(held.fence) as session:
        rollouts.add_step(session, held.fence, 1, [_sample(0)])
        queue.interrupt(session, held.fence, reason="test")
    second = claim()
    with db.fenced(second.fence) as session:
        rollouts.add_step(session, second.fence, 1, [_sample(1)])
    with db.read() as session:
        assert [row.token_ids for row in rollouts.page(session, held.run_id).items] == [[1]]
        assert len(rollouts.page(session, held.run_id, superseded=True).items) == 2


def test_samples_without_a_number_are_null_and_unknown_fields_refused(db: Database, held) -> None:
    with db.fenced(held.fence) as session:
        rollouts.add_step(session, held.fence, 1, [_sample(0, reward=None, advantage=math.nan, logp_mean=-math.inf)])
    with db.read() as session:
        (row,) = rollouts.page(session, held.run_id).items
    assert (row.reward, row.advantage, row.logp_mean) == (None, None, None)
    with pytest.raises(ValueError, match="rewrad"), db.fenced(held.fence) as session:
        rollouts.add_step(session, held.fence, 2, [{"rewrad": 1}])


def test_prompts_are_stored_once(db: Database) -> None:
    with db.write() as session:
        prompts.put_many(session, [("a" * 64, [1, 2], "one"), ("b" * 64, (3,), "two"), ("a" * 64, [1, 2], "one")])
        prompts.put_many(session, [("a" * 64, [9], "another text")])
        prompts.put_many(session, [])
    with db.read() as session:
        assert prompts.get(session, "a" * 64).token_ids == [1, 2]
        assert set(prompts.get_many(session, ["b" * 64, "c" * 64])) == {"b" * 64}
        with pytest.raises(NotFound):
            prompts.get(session, "c" * 64)


def test_analyses_are_found_from_both_runs(db: Database, make_run, claim) -> None:
    target = make_run()
    claim()
    run = make_run(kind="analysis")
    taken = claim()
    chosen = new_id()
    with db.fenced(taken.fence) as session:
        analyses.add(
            session, taken.fence, target_run_id=target.id, name="weight_linearity", params={"sample": None},
            result={"median": 0.9}, figures=["r2.json"], id=chosen,
        )  # fmt: skip
    with db.read() as session:
        assert analyses.get(session, chosen).result == {"median": 0.9}
        assert [row.id for row in analyses.list_for_run(session, target.id)] == [chosen]
        assert [row.figures for row in analyses.list_for_run(session, run.id)] == [["r2.json"]]
        with pytest.raises(NotFound):
            analyses.get(session, "nothing")


def test_use_of_a_token_is_written_only_when_the_last_one_is_old(db: Database) -> None:
    with db.write() as session:
        row = tokens.create(session, name="a", token_hash="a" * 64, scope="read")
        assert tokens.touch_is_due(session, row)
        tokens.touch(session, row.id)
        session.refresh(row)
        assert not tokens.touch_is_due(session, row)
        row.last_used_at = recent = row.last_used_at - 59
        session.flush()
        tokens.touch(session, row.id)
        session.refresh(row)
        assert row.last_used_at == recent, "two requests at once write once"


def test_revoked_tokens_are_not_found_but_keep_the_service_closed(db: Database) -> None:
    with db.read() as session:
        assert not tokens.any_exist(session)
    with db.write() as session:
        made = tokens.create(session, name="laptop", token_hash="a" * 64, scope="submit")
        tokens.touch(session, made.id)
    with db.read() as session:
        found = tokens.find(session, "a" * 64)
        assert (found.name, found.scope) == ("laptop", "submit")
        assert found.last_used_at is not None
        assert tokens.find(session, "b" * 64) is None
    with db.write() as session:
        tokens.revoke(session, made.id)
    with db.read() as session:
        assert tokens.find(session, "a" * 64) is None
        assert tokens.any_exist(session)
        assert [row.name for row in tokens.list_(session)] == ["laptop"]
    with pytest.raises(NotFound), db.write() as session:
        tokens.revoke(session, "nothing")


def _begin(db: Database, body: str = "a", scope: str = "s"):
    with db.write() as session:
        return idempotency.begin(session, scope_id=scope, key="k", body_hash=body * 64)


def _complete(db: Database) -> None:
    with db.write() as session:
        idempotency.complete(session, scope_id="s", key="k", status_code=201, response={"id": "x"})


def test_a_key_is_fresh_then_in_flight_then_replayed(db: Database) -> None:
    assert _begin(db) == idempotency.Fresh()
    assert _begin(db) == idempotency.InFlight()
    assert _begin(db, "b") == idempotency.Conflict()
    assert _begin(db, scope="another token") == idempotency.Fresh()
    _complete(db)
    assert _begin(db) == idempotency.Replay(201, {"id": "x"})
    assert _begin(db, "b") == idempotency.Conflict()


def test_a_key_given_back_is_fresh_and_an_answer_is_never_given_back(db: Database) -> None:
    _begin(db)
    with db.write() as session:
        idempotency.release(session, scope_id="s", key="k")
    assert _begin(db, "b") == idempotency.Fresh()
    _complete(db)
    with db.write() as session:
        idempotency.release(session, scope_id="s", key="k")
    assert _begin(db, "b") == idempotency.Replay(201, {"id": "x"})


@pytest.mark.parametrize(
    ("done", "age", "fresh"), [(False, 121, True), (False, 100, False), (True, 86_390, False), (True, 86_410, True)]
)
def test_keys_are_free_again_after_a_day_or_when_their_process_died(
    db: Database, done: bool, age: float, fresh: bool
) -> None:
    _begin(db)
    if done:
        _complete(db)
    with db.write() as session:
        session.execute(update(IdempotencyKey).values(created_at=now(session) - age))
    assert (_begin(db) == idempotency.Fresh()) == fresh


def test_gauges_count_runs_by_state_and_unsent_doorbells(db: Database, make_run, claim) -> None:
    make_run()
    claim()
    gone = make_run()
    make_run()
    with db.write() as session:
        runs.request_cancel(session, gone.id)
        assert counts.runs_by_state(session) == {"running": 1, "cancelled": 1, "queued": 1}
        runs.delete(session, gone.id)
        assert counts.runs_by_state(session) == {"running": 1, "queued": 1}
        assert counts.unsent_doorbells(session) == 3
        queue.outbox_sent(session, [row.id for row in queue.outbox_pending(session, limit=2)])
        assert counts.unsent_doorbells(session) == 1
