"""Repeated requests: one key, one run, and always the first answer."""

import hashlib
import json
from typing import Any

import pytest
from starlette.testclient import TestClient

from core.store import idempotency
from core.store.database import Database
from tests.api.conftest import FinishedRun, recipe


def _post(client: TestClient, key: str, **changes: Any) -> Any:
    return client.post("/runs", json=recipe(**changes), headers={"Idempotency-Key": key})


def test_repeat_with_the_same_key_gets_the_first_answer(client: TestClient) -> None:
    first, second = _post(client, "one"), _post(client, "one")
    assert second.status_code == 201
    assert second.json() == first.json()
    assert "Idempotent-Replayed" not in first.headers
    assert second.headers["Idempotent-Replayed"] == "true"
    assert second.headers["Location"] == first.headers["Location"]
    assert len(client.get("/runs").json()["data"]) == 1


def test_same_key_with_another_body_conflicts(client: TestClient) -> None:
    _post(client, "one")
    answer = _post(client, "one", seed=2)
    assert answer.status_code == 409
    assert answer.json()["error"]["code"] == "idempotency_conflict"


def test_same_key_while_the_first_request_is_in_flight_conflicts(client: TestClient, db: Database) -> None:
    with db.write() as session:
        idempotency.begin(session, scope_id="local", key="one", body_hash="0" * 64)
    answer = _post(client, "one")
    assert answer.status_code == 409
    assert answer.json()["error"]["code"] == "idempotency_conflict"
    # The same request, hashed as the service hashes it, is told to come back.
    raw = json.dumps(recipe(), separators=(",", ":"), ensure_ascii=False).encode()
    with db.write() as session:
        digest = hashlib.sha256(b"POST /runs\n" + raw).hexdigest()
        idempotency.begin(session, scope_id="local", key="two", body_hash=digest)
    headers = {"Idempotency-Key": "two", "Content-Type": "application/json"}
    again = client.post("/runs", content=raw, headers=headers)
    assert again.status_code == 409
    assert again.json()["error"]["code"] == "idempotency_in_flight"


@pytest.mark.parametrize("what", ["run", "fork", "regrade", "export"])
def test_a_repeat_is_answered_although_what_it_names_is_gone(
    client: TestClient, finished: FinishedRun, what: str
) -> None:
    checkpoint = client.get(f"/runs/{finished.id}/checkpoints").json()["data"][-1]
    evaluation = client.get(f"/runs/{finished.id}/evals").json()["data"][-1]
    evaluating = {"kind": "eval", "model": f"run:{finished.id}/step-{checkpoint['step']}", "suites": ["gsm8k"]}
    path, body = {
        "run": ("/runs", evaluating | {"device": {"kind": "cpu"}}),
        "fork": (f"/runs/{finished.id}/fork", {"from_step": "scratch"}),
        "regrade": (f"/evals/{evaluation['id']}/regrade", None),
        "export": (f"/checkpoints/{checkpoint['id']}/export", {"format": "hf"}),
    }[what]
    headers = {"Idempotency-Key": what}
    first = client.post(path, json=body, headers=headers)
    assert first.status_code == 201, first.text
    assert client.post(f"/runs/{first.json()['id']}/cancel").json()["state"] == "cancelled"
    assert client.delete(f"/runs/{finished.id}").status_code == 204
    again = client.post(path, json=body, headers=headers)
    assert (again.status_code, again.json()) == (201, first.json())
    assert client.post(path, json=body).status_code in {404, 410, 422}


def test_key_of_a_refused_request_can_be_used_again(client: TestClient) -> None:
    assert _post(client, "one", lr=1.0).status_code == 422
    assert _post(client, "one").status_code == 201


@pytest.mark.parametrize("key", ["", "with space", "x" * 201])
def test_unusable_key_is_refused(client: TestClient, key: str) -> None:
    answer = _post(client, key)
    assert answer.status_code == 422
    assert answer.json()["error"]["param"] == "Idempotency-Key"


def test_two_keys_are_refused_rather_than_one_chosen(client: TestClient) -> None:
    headers = [("Idempotency-Key", "one"), ("Idempotency-Key", "two")]
    answer = client.post("/runs", json=recipe(), headers=headers)
    assert answer.status_code == 422
    assert (answer.json()["error"]["param"], answer.json()["error"]["hint"]) == ("Idempotency-Key", "give it once")
    assert client.get("/runs").json()["data"] == []
