"""Own reward functions at the door: what is accepted is pinned by hash, what cannot be run is refused by name."""

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from core.settings import Settings
from tests.api.conftest import recipe

TERM = "file:mine.py:score"
SOURCE = b"def score(prompt, completion, item):\n    return 1.0\n"


@pytest.fixture
def folder(client: TestClient, app: Any, settings: Settings, tmp_path: Path) -> Path:
    """A reward folder of the service."""
    made = tmp_path / "rewards"
    made.mkdir()
    (made / "mine.py").write_bytes(SOURCE)
    app.state.service = replace(app.state.service, settings=replace(settings, rewards_dir=made))
    return made


def refused(client: TestClient, term: str, **options: Any) -> dict[str, Any]:
    answer = client.post("/runs", json=recipe(rewards={"auto": 1.0, term: {"weight": 0.5, **options}}))
    assert answer.status_code == 422, answer.text
    error: dict[str, Any] = answer.json()["error"]
    return error


def test_an_accepted_recipe_holds_the_hash_of_its_reward_file(client: TestClient, folder: Path) -> None:
    answer = client.post("/runs", json=recipe(rewards={"auto": 1.0, TERM: 0.5}))
    assert answer.status_code == 201, answer.text
    term = answer.json()["recipe"]["rewards"][TERM]
    assert term == {"weight": 0.5, "arguments": {}, "sha256": hashlib.sha256(SOURCE).hexdigest()}


def test_another_file_is_another_recipe(client: TestClient, folder: Path) -> None:
    hashes = []
    for source in (SOURCE, SOURCE + b"# changed\n"):
        (folder / "mine.py").write_bytes(source)
        hashes.append(client.post("/runs", json=recipe(rewards={"auto": 1.0, TERM: 0.5})).json()["recipe_hash"])
    assert hashes[0] != hashes[1]


@pytest.mark.parametrize(
    ("term", "words"),
    [
        ("file:absent.py:score", "no file absent.py"),
        ("file:mine.py:absent", "defines no function absent"),
        ("file:../mine.py:score", "does not name a function"),
        ("file:..:score", "does not name a function"),
    ],
)
def test_what_cannot_be_run_is_refused_by_name(client: TestClient, folder: Path, term: str, words: str) -> None:
    error = refused(client, term)
    assert error["param"].startswith("rewards")
    assert words in error["message"]
    assert error["hint"]


def test_a_file_that_is_not_the_pinned_one_is_refused(client: TestClient, folder: Path) -> None:
    assert "is not the file" in refused(client, TERM, sha256="0" * 64)["message"]


def test_without_a_reward_folder_the_variable_is_named(client: TestClient) -> None:
    assert "DRIFTLINE_REWARDS" in refused(client, TERM)["hint"]
