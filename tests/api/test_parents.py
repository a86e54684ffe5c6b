"""Parents and children: a parent that is needed cannot be deleted, and a child outlives one that was deleted before."""

from typing import Any

from starlette.testclient import TestClient

from core.store import runs
from core.store.database import Database, Fence
from tests.api.conftest import Builder, FinishedRun, recipe

EVAL: dict[str, Any] = {"kind": "eval", "suites": ["gsm8k"], "device": {"kind": "cpu"}}


def _child(client: TestClient, build: Builder, parent: str) -> Fence:
    """A finished fork of ``parent`` with a checkpoint of its own."""
    posted = client.post(f"/runs/{parent}/fork", json={})
    assert posted.status_code == 201
    fence = build.claimed(posted.json()["id"])
    build.checkpoint(fence, 10)
    build.finish(fence)
    return fence


def test_child_of_a_deleted_parent_can_be_evaluated_analysed_trained_on_and_forked(
    client: TestClient, build: Builder, finished: FinishedRun, db: Database
) -> None:
    child = _child(client, build, finished.id).run_id
    with db.write() as session:
        runs.delete(session, finished.id)
    last = f"run:{child}/last"
    analysis = {"kind": "analysis", "compute": ["weight_linearity"], "run": f"run:{child}"}
    for body in (EVAL | {"model": last}, recipe(model=last), analysis):
        answer = client.post("/runs", json=body)
        assert answer.status_code == 201, answer.text
    assert client.post(f"/runs/{child}/fork", json={}).status_code == 201


def test_parent_of_a_finished_fork_cannot_be_deleted_until_the_fork_is(
    client: TestClient, build: Builder, finished: FinishedRun
) -> None:
    child = _child(client, build, finished.id).run_id
    answer = client.delete(f"/runs/{finished.id}")
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (409, "run_in_use")
    assert child in error["message"]
    assert client.delete(f"/runs/{child}").status_code == 204
    assert client.delete(f"/runs/{finished.id}").status_code == 204


def test_run_whose_checkpoint_is_the_model_of_a_train_run_cannot_be_deleted(
    client: TestClient, build: Builder, finished: FinishedRun
) -> None:
    user = build.queued(model=f"run:{finished.id}/step-4")["id"]
    client.post(f"/runs/{user}/cancel")
    answer = client.delete(f"/runs/{finished.id}")
    assert answer.status_code == 409
    assert user in answer.json()["error"]["message"]


def test_fork_from_scratch_does_not_keep_its_parent(client: TestClient, finished: FinishedRun) -> None:
    client.post(f"/runs/{finished.id}/fork", json={"from_step": "scratch"})
    assert client.delete(f"/runs/{finished.id}").status_code == 204
