"""Every recipe of the paper's table as a dry run: planned by component; what does not fit is told a change that does."""

import json
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

FILES = sorted((Path(__file__).parents[2] / "recipes" / "paper").glob("*.json"))


def planned(client: TestClient, recipe: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The answer to a dry run, and the one card in it: without a worker, the recipe's own device."""
    answer = client.post("/runs?dry_run=true", json=recipe)
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    [card] = body["cards"]
    return body, card


def changed(recipe: dict[str, Any], change: str) -> dict[str, Any]:
    """The recipe with a change as a plan names it: a field, then its value."""
    field, value = change.split(" ", 1)
    return recipe | {field: json.loads(value) if value.startswith("{") else value}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_recipe_of_the_paper_is_planned_and_never_refused(client: TestClient, path: Path) -> None:
    recipe = json.loads(path.read_text())
    body, card = planned(client, recipe)
    assert card["device"]["memory_gib"] == recipe["device"]["memory_gib"]
    assert len(card["plan"]["components_gib"]) >= 5
    assert card["fits"] is body["fits"] is (card["plan"]["peak_gib"] <= card["plan"]["budget_gib"])
    assert body["fits"] or not path.stem.endswith("-24gib")
    if not card["fits"]:
        assert planned(client, changed(recipe, card["smallest_change"]))[0]["fits"]
    assert client.get("/runs").json()["data"] == []
