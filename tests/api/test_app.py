"""The application as a whole: start-up, imports, the OpenAPI document, failures of the database."""

import asyncio
import re
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
from fastapi import FastAPI
from sqlalchemy import create_engine, text
from sqlalchemy.exc import OperationalError
from starlette.testclient import TestClient

from api.app import create_app
from core.settings import Settings
from core.store.database import Database
from core.store.errors import SchemaMismatch

REQUEST_PARTS = {"requestBody", "parameters"}


def _start(settings: Settings) -> None:
    async def run() -> None:
        app = create_app(settings, sweep=False)
        async with app.router.lifespan_context(app):
            pass

    asyncio.run(run())


def test_database_without_tables_is_refused(settings: Settings) -> None:
    url = f"sqlite:///{settings.home / 'fresh.db'}"
    with pytest.raises(SchemaMismatch, match="migrate it first"):
        _start(replace(settings, database_url=url))


def test_database_of_a_newer_version_is_refused(settings: Settings) -> None:
    engine = create_engine(settings.database_url)
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    engine.dispose()
    with pytest.raises(SchemaMismatch, match="newer version"):
        _start(settings)


def test_sweeper_runs_with_the_application_and_ends_with_it(settings: Settings) -> None:
    import threading

    async def run() -> bool:
        app = create_app(settings)
        async with app.router.lifespan_context(app):
            return any(thread.name == "sweeper" for thread in threading.enumerate())

    assert asyncio.run(run())
    assert not any(thread.name == "sweeper" for thread in threading.enumerate())


def test_import_graph_holds_no_torch() -> None:
    code = (
        "import sys, api.app, api.__main__, worker.sweeper, worker.doorbell; api.app.create_app();"
        "print(sorted(name for name in ('torch', 'transformers', 'vllm', 'pyarrow', 'matplotlib') if name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def _operations(app: FastAPI) -> list[tuple[str, str, dict[str, Any]]]:
    document = app.openapi()
    return [(path, method, operation) for path, item in document["paths"].items() for method, operation in item.items()]


def test_operation_ids_are_named_by_hand_and_unique(app: FastAPI) -> None:
    names = [operation["operationId"] for _, _, operation in _operations(app)]
    assert len(names) == len(set(names))
    assert all(re.fullmatch(r"[a-z_]{4,40}", name) for name in names)


def test_every_operation_documents_its_refusals_with_the_error_schema(app: FastAPI) -> None:
    for path, _, operation in _operations(app):
        for status, answer in operation["responses"].items():
            if int(status) >= 400 and (path, status) != ("/readyz", "503"):
                schema = answer["content"]["application/json"]["schema"]
                assert schema == {"$ref": "#/components/schemas/ErrorBody"}, (path, status)


def test_every_reference_of_the_document_resolves(app: FastAPI) -> None:
    document = app.openapi()
    references = set(re.findall(r"'#/components/schemas/([^']+)'", repr(document)))
    assert references <= document["components"]["schemas"].keys()


def test_recipe_schema_names_the_three_kinds(app: FastAPI) -> None:
    schemas = app.openapi()["components"]["schemas"]
    assert set(schemas["Recipe"]["discriminator"]["mapping"]) == {"train", "eval", "analysis"}


def test_locked_database_is_unavailable_and_no_crash(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def locked(_self: Database) -> None:
        raise OperationalError("BEGIN", {}, Exception("database is locked"))

    monkeypatch.setattr(Database, "read", locked)
    answer = client.get("/runs")
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "database_unavailable"
    assert answer.headers["Retry-After"]


def test_unexpected_failure_tells_nothing_of_the_inside(
    client: TestClient, app: FastAPI, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_self: Database) -> None:
        raise RuntimeError("secret detail")

    monkeypatch.setattr(Database, "read", broken)
    quiet = TestClient(app, base_url=str(client.base_url), client=("127.0.0.1", 1), raise_server_exceptions=False)
    answer = quiet.get("/runs")
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "internal"
    assert "secret" not in answer.text


@pytest.mark.parametrize(
    ("path", "param", "said"),
    [
        ("/runs/ab/curves?attempt=CURRENT", "attempt", "`current`, or the number of one attempt"),
        ("/runs/ab/curves?max_points=0", "max_points", "per key"),
        ("/runs/ab/curves?format=xml", "format", "'json' or 'csv'"),
        ("/runs/zz", "id", "id of a run"),
        ("/evals/a/diff/b", "a", "12 hexadecimal characters"),
        ("/runs/ab/logs?tail=0", "tail", "lines"),
    ],
)
def test_a_parameter_that_cannot_be_used_is_told_with_what_it_is(
    client: TestClient, path: str, param: str, said: str
) -> None:
    answer = client.get(path)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (422, param)
    assert said in error["hint"]
