"""The run's state machine, driven at random and compared with a table written down here a second time."""

from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from sqlalchemy import update

from core.store import checkpoints, events, metrics, queue, runs
from core.store.database import Database
from core.store.errors import IllegalTransition, NotFound, StaleAttempt
from core.store.models import Run
from core.store.states import ATTEMPT_TRANSITIONS, FINAL, HELD, TRANSITIONS, AttemptState, RunState

FINAL_NAMES = ("succeeded", "damage_stopped", "failed", "cancelled")
LEGAL = {
    "queued": {"running", "cancelled", "failed"},
    "running": {"queued", "pausing", "cancelling", *FINAL_NAMES},
    "pausing": {"paused", "cancelling", *FINAL_NAMES},
    "paused": {"queued", "cancelled"},
    "cancelling": set(FINAL_NAMES),
    **{name: set() for name in FINAL_NAMES},
}


def test_the_table_is_the_contracts() -> None:
    assert {str(state): {str(to) for to in targets} for state, targets in TRANSITIONS.items()} == LEGAL


def test_every_state_can_reach_a_final_one() -> None:
    reach = {state: set(LEGAL[state]) for state in LEGAL}
    for _ in LEGAL:
        reach = {state: targets.union(*(reach[to] for to in targets)) for state, targets in reach.items()}
    assert all(state in FINAL_NAMES or set(FINAL_NAMES) <= targets for state, targets in reach.items())


def test_attempts_end_once() -> None:
    ended = {AttemptState.INTERRUPTED, AttemptState.FINISHED}
    assert {state for state, targets in ATTEMPT_TRANSITIONS.items() if not targets} == ended
    assert set(ATTEMPT_TRANSITIONS) == set(AttemptState)


@pytest.mark.parametrize("old", RunState)
@pytest.mark.parametrize("new", RunState)
def test_transition_allows_what_the_table_allows_and_names_the_alternatives(sqlite_db, old, new) -> None:
    with sqlite_db.write() as session:
        run = runs.create(
            session, recipe={}, submitted={}, recipe_hash="r", family_hash="f", model=None, name="n", kind="train"
        )  # fmt: skip
        session.execute(update(Run).where(Run.id == run.id).values(state=old, attempt=1, lease_expires_at=1.0))
    legal = str(new) in LEGAL[old] and new != RunState.RUNNING
    with sqlite_db.write() as session:
        if legal:
            assert runs.transition(session, run.id, new).state == new
        else:
            with pytest.raises(IllegalTransition, match=run.id):
                runs.transition(session, run.id, new)
            assert runs.get(session, run.id).state == old


@pytest.fixture
def sqlite_db(sqlite_template, tmp_path):
    (tmp_path / "s.db").write_bytes(sqlite_template.read_bytes())
    database = Database(f"sqlite:///{tmp_path / 's.db'}")
    yield database
    database.dispose()


class RunMachine(RuleBasedStateMachine):
    """One run, asked for everything at any time; the model keeps its state, its fences and its failed attempts."""

    db: Database
    priority = 0

    def __init__(self) -> None:
        super().__init__()
        RunMachine.priority += 1  # earlier examples leave runs behind; this example's is claimed first
        with self.db.write() as session:
            run = runs.create(
                session, recipe={}, submitted={}, recipe_hash="r", family_hash="f", model=None, name="n", kind="train",
                priority=RunMachine.priority, max_attempts=3,
            )  # fmt: skip
        self.id, self.state, self.fences, self.failures, self.best, self.step = run.id, "queued", [], 0, 0, 0
        self.reached_new = False
        self.deleted = False

    def _expect(self, allowed: bool, call: Any, to: str | None = None) -> None:
        try:
            with self.db.write() as session:
                call(session)
            done = True
        except IllegalTransition:
            done = False
        except NotFound:
            assert self.deleted
            done = False
        assert done == (allowed and not self.deleted)
        if done and to is not None:
            self.state = to

    @property
    def _held(self) -> bool:
        return self.state in {"running", "pausing", "cancelling"}

    def _interrupted(self) -> str:
        self.failures = 0 if self.reached_new else self.failures + 1
        match self.state:
            case "cancelling":
                return "cancelled"
            case "pausing":
                return "paused"
        return "failed" if self.failures >= 3 else "queued"

    @precondition(lambda self: not self.deleted)
    @rule()
    def claim(self) -> None:
        with self.db.write() as session:
            found = queue.claim(session, worker_id="0" * 12, device=None, ttl=-1.0)
            mine = found is not None and found.run_id == self.id
            if found is not None and not mine:
                session.rollback()
        assert mine == (self.state == "queued")
        if mine:
            assert found is not None
            assert found.fence.token > max((fence.token for fence in self.fences), default=0)
            self.fences.append(found.fence)
            self.state, self.reached_new = "running", False

    @rule()
    def cancel(self) -> None:
        to = {"queued": "cancelled", "paused": "cancelled"}.get(self.state, "cancelling")
        allowed = self.state in {"queued", "paused", "running", "pausing", "cancelling"}
        self._expect(allowed, lambda session: runs.request_cancel(session, self.id), to)

    @rule()
    def pause(self) -> None:
        self._expect(self.state in {"running", "pausing"}, lambda s: runs.request_pause(s, self.id), "pausing")

    @rule()
    def resume(self) -> None:
        self._expect(self.state == "paused", lambda session: runs.resume(session, self.id), "queued")

    @rule()
    def delete(self) -> None:
        allowed = self.state in FINAL_NAMES and not self.deleted
        self._expect(allowed, lambda session: runs.delete(session, self.id))
        self.deleted = self.deleted or allowed

    @precondition(lambda self: self._held)
    @rule(state=st.sampled_from(FINAL_NAMES))
    def finish(self, state: str) -> None:
        self._expect(True, lambda session: queue.finish(session, self.fences[-1], state=RunState(state)), state)

    @precondition(lambda self: self._held)
    @rule()
    def pause_done(self) -> None:
        to = {"pausing": "paused", "cancelling": "cancelled"}.get(self.state)
        self._expect(to is not None, lambda s: queue.pause_done(s, self.fences[-1]), to)

    @precondition(lambda self: self._held)
    @rule()
    def interrupt(self) -> None:
        to = self._interrupted()
        self._expect(True, lambda session: queue.interrupt(session, self.fences[-1], reason="test"), to)

    @rule()
    def sweep(self) -> None:
        with self.db.write() as session:
            expired = queue.sweep(session).expired
        assert (self.id in expired) == self._held
        if self._held:
            self.state = self._interrupted()

    @precondition(lambda self: self._held)
    @rule()
    def checkpoint(self) -> None:
        self.step += 1
        fence = self.fences[-1]
        with self.db.fenced(fence) as session:
            checkpoints.add(
                session, fence, step=self.step, path="p", sha256="s", files={}, bytes=1, has_optimizer=True, provenance={}
            )  # fmt: skip
        self.reached_new = True

    @precondition(lambda self: self.fences)
    @rule(data=st.data())
    def write_with_an_old_or_present_fence(self, data: st.DataObject) -> None:
        fence = data.draw(st.sampled_from(self.fences))
        fresh = self._held and fence == self.fences[-1]
        try:
            with self.db.fenced(fence) as session:
                metrics.record(session, fence, 1, {"loss": 0.0})
            assert fresh
        except StaleAttempt:
            assert not fresh

    @invariant()
    def the_row_agrees(self) -> None:
        with self.db.read() as session:
            run = runs.get(session, self.id, deleted=True)
            attempts = runs.attempts(session, self.id)
        assert run.state == self.state
        assert (run.lease_expires_at is not None) == (RunState(run.state) in HELD)
        assert (run.finished_at is not None) == (RunState(run.state) in FINAL)
        assert len(attempts) == len(self.fences)
        open_ones = [attempt.number for attempt in attempts if attempt.ended_at is None]
        assert open_ones == ([len(attempts)] if self._held else [])

    def teardown(self) -> None:
        with self.db.read() as session:
            steps = events.page(session, self.id, limit=1000).items
        told = [(event.payload["from"], event.payload["to"]) for event in steps if event.type == "state"]
        assert all(new in LEGAL[old] for old, new in told)


def test_a_run_asked_for_everything_at_any_time_obeys_its_table(db: Database) -> None:
    machine = type("BoundMachine", (RunMachine,), {"db": db})
    few = settings(max_examples=12, stateful_step_count=15, deadline=None, suppress_health_check=list(HealthCheck))
    run_state_machine_as_test(machine, settings=few)
