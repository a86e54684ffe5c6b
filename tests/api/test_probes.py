"""Posting a probe: a run that is measured, without prespecification, whose report appears in its document."""

import pytest
from starlette.testclient import TestClient

from core.store import events
from core.store.database import Database
from tests.api.conftest import recipe


def test_a_probe_is_a_run_that_prespecifies_nothing(client: TestClient, db: Database) -> None:
    answer = client.post("/runs?probe=true", json=recipe())
    assert answer.status_code == 201
    run = answer.json()
    assert (run["probe"], run["probe_report"], run["prespecification_id"]) == (True, None, None)
    assert run["state"] == "queued"
    real = client.post("/runs", json=recipe()).json()
    assert (real["probe"], real["run_of_family"]) == (False, 1)  # a probe is no try at the recipe


def test_the_last_attempts_report_is_shown(client: TestClient, db: Database) -> None:
    run = client.post("/runs?probe=true", json=recipe()).json()
    with db.write() as session:
        events.append(session, run["id"], "probe_report", {"summary": "first"}, 1)
        events.append(session, run["id"], "probe_report", {"summary": "second"}, 2)
    assert client.get(f"/runs/{run['id']}").json()["probe_report"] == {"summary": "second"}


def test_repeating_a_key_gives_the_first_probe_and_never_the_run(client: TestClient) -> None:
    headers = {"Idempotency-Key": "one"}
    first = client.post("/runs?probe=true", json=recipe(), headers=headers).json()
    again = client.post("/runs?probe=true", json=recipe(), headers=headers)
    assert again.json()["id"] == first["id"]
    assert client.post("/runs", json=recipe(), headers=headers).status_code == 409


@pytest.mark.parametrize(
    ("query", "body", "param"),
    [
        ("probe=true&dry_run=true", recipe(), "probe"),
        (
            "probe=true",
            {"kind": "eval", "model": "smollm2-135m", "suites": ["gsm8k"], "device": {"kind": "cpu"}},
            "kind",
        ),
        ("probe=true", recipe(algorithm="sft", num_generations=None), "algorithm.name"),
        ("probe=perhaps", recipe(), "probe"),
    ],
)
def test_what_cannot_be_probed_is_refused_by_name(client: TestClient, query: str, body: object, param: str) -> None:
    answer = client.post(f"/runs?{query}", json=body)
    assert answer.status_code == 422
    assert answer.json()["error"]["param"] == param
