"""Tokens, scopes and the service without tokens."""

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from core.store import tokens
from core.store.bearer import token_hash
from core.store.database import Database
from tests.api.conftest import BASE_URL, recipe


def _token(db: Database, scope: str) -> dict[str, str]:
    secret = f"secret-of-{scope}"
    with db.write() as session:
        tokens.create(session, name=scope, token_hash=token_hash(secret), scope=scope)
    return {"Authorization": f"Bearer {secret}"}


def test_without_tokens_only_the_loopback_interface_may_ask(app: FastAPI, client: TestClient) -> None:
    far = TestClient(app, base_url=BASE_URL, client=("10.1.2.3", 5000))
    answer = far.get("/runs")
    assert answer.status_code == 401
    assert "no tokens yet" in answer.json()["error"]["message"]
    assert client.get("/runs").status_code == 200


def test_first_token_closes_the_service_to_everybody_without_one(client: TestClient, db: Database) -> None:
    _token(db, "read")
    answer = client.get("/runs")
    assert answer.status_code == 401
    assert answer.headers["WWW-Authenticate"].startswith("Bearer")


def test_unknown_token_is_refused(client: TestClient) -> None:
    assert client.get("/runs", headers={"Authorization": "Bearer nobody"}).status_code == 401


def test_revoked_token_is_refused(client: TestClient, db: Database) -> None:
    headers = _token(db, "read")
    with db.write() as session:
        tokens.revoke(session, tokens.list_(session)[0].id)
    assert client.get("/runs", headers=headers).status_code == 401


@pytest.mark.parametrize(
    ("scope", "read", "submit", "delete"),
    [("read", 200, 403, 403), ("submit", 200, 201, 403), ("admin", 200, 201, 404)],
)
def test_scopes_include_the_smaller_ones(
    client: TestClient, db: Database, scope: str, read: int, submit: int, delete: int
) -> None:
    headers = _token(db, scope)
    assert client.get("/runs", headers=headers).status_code == read
    assert client.post("/runs", json=recipe(), headers=headers).status_code == submit
    assert client.delete("/runs/ffffffffffff", headers=headers).status_code == delete


def test_idempotency_keys_of_two_tokens_do_not_meet(client: TestClient, db: Database) -> None:
    first, second = _token(db, "submit"), _token(db, "admin")
    key = {"Idempotency-Key": "same"}
    one = client.post("/runs", json=recipe(), headers=first | key).json()
    two = client.post("/runs", json=recipe(), headers=second | key).json()
    assert one["id"] != two["id"]


def test_token_is_stored_only_as_its_hash(db: Database, client: TestClient) -> None:
    _token(db, "read")
    with db.read() as session:
        stored = tokens.list_(session)[0].token_hash
    assert "secret" not in stored
    # the published test vector of SHA-256
    assert token_hash("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_refused_clients_body_is_not_parsed(client: TestClient, db: Database) -> None:
    _token(db, "read")
    answer = client.post("/runs", content=b"{not json", headers={"Content-Type": "application/json"})
    assert answer.status_code == 401


def test_health_and_versions_ask_for_no_token(client: TestClient, db: Database) -> None:
    _token(db, "read")
    assert client.get("/healthz").status_code == 200
    assert client.get("/version").status_code == 200
    assert client.get("/metrics").status_code == 401
