"""Analyses of checkpoints from elsewhere are refused when posted; tables come as Parquet and by listed names only."""

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from pyarrow import parquet

from core.dynamics.tables import write_tables
from core.settings import Settings
from core.store import analyses
from core.store.database import Database
from core.store.types import new_id
from tests.api.conftest import Builder
from tests.core.engines.conftest import make_llama

STEPS = (0, 20, 40, 60)


@pytest.fixture
def folder(app: FastAPI, settings: Settings, client: TestClient) -> Path:
    """Four checkpoints in a model folder that the service of ``client`` knows."""
    models = settings.home / "models-folder"
    first = models / "mine" / "step-0"
    make_llama().save_pretrained(first)
    for step in STEPS[1:]:
        other = models / "mine" / f"step-{step}"
        other.mkdir()
        for file in first.iterdir():
            (other / file.name).write_bytes(file.read_bytes())
    app.state.service = replace(app.state.service, settings=replace(settings, models_dir=models))
    return models / "mine"


def post(client: TestClient, checkpoints: Any, *, dry: bool = False, **more: Any) -> Any:
    body = {"kind": "analysis", "checkpoints": checkpoints, "compute": ["weight_linearity"]} | more
    return client.post("/runs" + ("?dry_run=true" if dry else ""), json=body)


def test_checkpoints_from_elsewhere_are_accepted_and_planned(client: TestClient, folder: Path) -> None:
    assert post(client, "mine", dry=True).json()["fits"] in (True, False)
    made = post(client, "mine")
    assert made.status_code == 201, made.text
    assert made.json()["recipe"]["checkpoints"]["folder"] == "mine"
    assert client.get(f"/runs/{made.json()['id']}").json()["kind"] == "analysis"


@pytest.mark.parametrize(
    ("checkpoints", "words"),
    [
        ("other", "other"),
        ({"folder": "mine", "steps": {"step-0": 0, "step-20": 20, "step-40": 40}}, "at least 4"),
        ({"folder": "mine", "steps": {"step-0": 0, "step-20": 20, "step-40": 40, "gone": 50}}, "gone"),
        ({"folder": "mine", "steps": {"step-0": 0, "step-20": 5, "step-40": 5, "step-60": 6}}, "must increase"),
        ([{"model": "smollm2-135m", "step": step} for step in (0, 2, 1, 3)], "must increase"),
    ],
)
def test_wrong_checkpoints_are_refused_when_posted(
    client: TestClient, folder: Path, checkpoints: Any, words: str
) -> None:
    answer = post(client, checkpoints)
    assert answer.status_code == 422
    error = answer.json()["error"]
    assert words in error["message"]
    assert error["param"].startswith("checkpoints")
    assert error["hint"]


def test_an_incomplete_checkpoint_is_refused_by_name(client: TestClient, folder: Path) -> None:
    (folder / "step-40" / "model.safetensors").unlink()
    assert "mine/step-40" in post(client, "mine").json()["error"]["message"]


def test_a_service_without_a_model_folder_says_so(client: TestClient) -> None:
    assert "DRIFTLINE_MODELS" in post(client, "mine").json()["error"]["hint"]


def test_tables_are_parquet_and_only_those_that_are_listed(
    client: TestClient, build: Builder, settings: Settings
) -> None:
    recipe = {"kind": "analysis", "run": f"run:{build.finished().id}", "compute": ["weight_linearity"]}
    fence = build.claimed(build.client.post("/runs", json=recipe).json()["id"])
    made = new_id()
    home = settings.analysis_dir(made)
    home.mkdir(parents=True)
    names = write_tables({"tokens": {"r2": np.array([0.5, 0.25]), "values": np.eye(2), "text": ["a", "b"]}}, home)
    (home / "secret.parquet").write_bytes(b"")
    with Database(settings.database_url).fenced(fence) as session:
        analyses.add(
            session,
            fence,
            target_run_id=fence.run_id,
            name="token_linearity",
            params={},
            result={"tables": names},
            id=made,
        )
    answer = client.get(f"/analyses/{made}/tables/tokens.parquet")
    assert answer.headers["Content-Type"] == "application/vnd.apache.parquet"
    rows = parquet.read_table(io.BytesIO(answer.content)).to_pylist()
    assert rows == [{"r2": 0.5, "values": [1.0, 0.0], "text": "a"}, {"r2": 0.25, "values": [0.0, 1.0], "text": "b"}]
    for name in ("secret.parquet", "..%2ftokens.parquet"):
        assert client.get(f"/analyses/{made}/tables/{name}").status_code == 404
    assert json.loads(client.get(f"/analyses/{made}").text)["result"]["tables"] == ["tokens.parquet"]
