"""References to checkpoints that are not there: the message says what the run has."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from core.engines.models import ModelError
from core.engines.references import find_checkpoint
from core.store import checkpoints, queue, runs
from core.store.database import Database
from core.store.fencing import Fence
from core.store.migrations_api import migrate


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    """A migrated, empty database."""
    url = f"sqlite:///{tmp_path / 'driftline.db'}"
    migrate(url)
    database = Database(url)
    yield database
    database.dispose()


@pytest.fixture
def fence(db: Database) -> Fence:
    """A claimed run without checkpoints."""
    with db.write() as session:
        runs.create(
            session,
            recipe={"kind": "train"},
            submitted={"kind": "train"},
            recipe_hash="a" * 64,
            family_hash="b" * 64,
            model="smollm2-135m",
            name="a run",
            kind="train",
        )
        device = {"kind": "cpu", "name": "cpu", "memory_bytes": 1 << 30}
        worker = queue.register_worker(session, hostname="host", pid=1, device=device)
        claim = queue.claim(session, worker_id=worker, device=device, ttl=120.0)
    assert claim is not None
    return claim.fence


def test_missing_step_is_told_with_the_steps_there_are(db: Database, fence: Fence) -> None:
    for step in (0, 7):
        with db.fenced(fence) as session:
            checkpoints.add(
                session,
                fence,
                step=step,
                path=f"runs/{step}",
                sha256=str(step) * 64,
                files={},
                bytes=1,
                has_optimizer=True,
                provenance={},
            )
    reference = f"run:{fence.run_id}/step-9"
    with db.read() as session, pytest.raises(ModelError) as caught:
        find_checkpoint(session, reference)
    expected = f"model '{reference}' is not there: run {fence.run_id} has checkpoints of steps 0, 7"
    assert str(caught.value) == expected


def test_run_without_checkpoints_is_told_to_have_none(db: Database, fence: Fence) -> None:
    reference = f"run:{fence.run_id}/last"
    with db.read() as session, pytest.raises(ModelError) as caught:
        find_checkpoint(session, reference)
    assert str(caught.value) == f"model '{reference}' is not there: run {fence.run_id} has no checkpoint yet"
