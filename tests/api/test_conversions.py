"""POST /checkpoints/{id}/export makes a run of the wish, or says what of it cannot be."""

import pytest
from fastapi.testclient import TestClient

from core.recipes import AnalysisRecipe, load_recipe
from core.store import checkpoints, runs
from core.store.database import Database
from tests.api.conftest import FinishedRun


def test_a_wish_becomes_a_run_that_exports_this_step(client: TestClient, db: Database, finished: FinishedRun) -> None:
    wish = {"format": "adapter", "rank": 8}
    answer = client.post(f"/checkpoints/{finished.checkpoints[0]}/export", json=wish)
    assert answer.status_code == 201, answer.json()
    body = answer.json()
    assert answer.headers["Location"] == f"/runs/{body['id']}"
    assert (body["kind"], body["state"]) == ("analysis", "queued")
    with db.read() as session:
        recipe = load_recipe(runs.get(session, body["id"]).recipe)
        step = checkpoints.by_id(session, finished.checkpoints[0]).step
    assert isinstance(recipe, AnalysisRecipe)
    assert recipe.run == f"run:{finished.id}"
    block = recipe.compute[0].export
    assert (block.step, block.format, block.rank, block.records) == (step, "adapter", 8, 20)


def test_no_body_means_a_bf16_folder(client: TestClient, db: Database, finished: FinishedRun) -> None:
    headers = {"Content-Type": "application/json"}
    answer = client.post(f"/checkpoints/{finished.checkpoints[0]}/export", headers=headers)
    assert answer.status_code == 201
    block = answer.json()["recipe"]["compute"][0]["export"]
    assert (block["format"], block["dtype"]) == ("hf", "bfloat16")


def test_a_repeated_key_makes_one_run(client: TestClient, finished: FinishedRun) -> None:
    path, headers = f"/checkpoints/{finished.checkpoints[0]}/export", {"Idempotency-Key": "once"}
    first = client.post(path, json={"format": "gguf"}, headers=headers)
    second = client.post(path, json={"format": "gguf"}, headers=headers)
    assert second.json()["id"] == first.json()["id"]
    assert second.headers["Idempotent-Replayed"] == "true"
    assert client.post(path, json={"format": "hf"}, headers=headers).status_code == 409


@pytest.mark.parametrize(
    ("wish", "param"),
    [
        ({"format": "onnx"}, "format"),
        ({"format": "hf", "rank": 4}, "rank"),
        ({"form": "hf"}, "form"),
        ({"records": -1}, "records"),
        ({"format": "adapter", "rank": 0}, "rank"),
    ],
)
def test_what_cannot_be_is_named(
    client: TestClient, finished: FinishedRun, wish: dict[str, object], param: str
) -> None:
    answer = client.post(f"/checkpoints/{finished.checkpoints[0]}/export", json=wish)
    assert answer.status_code == 422
    assert answer.json()["error"]["param"] == param


def test_a_checkpoint_that_is_not_there_is_not_found(client: TestClient) -> None:
    assert client.post("/checkpoints/0123456789ab/export", json={}).status_code == 404


def test_an_export_is_not_exported_again(client: TestClient, db: Database, finished: FinishedRun) -> None:
    with db.write() as session:
        row = checkpoints.by_id(session, finished.checkpoints[0])
        row.provenance = row.provenance | {"format": "gguf"}
    answer = client.post(f"/checkpoints/{finished.checkpoints[0]}/export", json={})
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "not_a_model")
