"""Requests generated from the OpenAPI document, against a service that holds a finished run.

Every operation is tried twice: with ids as generated, which mostly do not exist, and with the stored ones. What must hold
of every answer: no status of 500 or more, none that is not documented, a body that fits its schema. ``/readyz`` is left
to its own test, because 503 is its documented answer while no broker is there.
"""

from typing import Any

import pytest
import schemathesis
from fastapi import FastAPI
from hypothesis import HealthCheck, settings
from schemathesis import Case
from schemathesis.checks import not_a_server_error
from schemathesis.config import SchemathesisConfig
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from starlette.types import Receive, Scope, Send

from api.app import create_app
from core.settings import Settings
from tests.api.conftest import BASE_URL, FinishedRun

pytestmark = pytest.mark.slow

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
FEW = settings(max_examples=10, deadline=None, database=None, suppress_health_check=list(HealthCheck))


class Loopback:
    """Hands requests to the application under test as if they came from this machine; start-up is the client fixture's."""

    app: FastAPI | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            while (await receive())["type"] != "lifespan.shutdown":
                await send({"type": "lifespan.startup.complete"})
            await send({"type": "lifespan.shutdown.complete"})
            return
        assert self.app is not None
        await self.app({**scope, "client": ("127.0.0.1", 50000)}, receive, send)


def _document() -> Any:
    placeholder = Settings.from_env({"DRIFTLINE_HOME": "/nonexistent"})
    return create_app(placeholder, sweep=False).openapi()


loopback = Loopback()
# Boundary values of every field of a recipe are thousands of requests; the recipe's own tests try them without a server.
CONFIG = SchemathesisConfig.from_dict(
    {"operations": [{"include-operation-id": "create_run", "phases": {"coverage": {"enabled": False}}}]}
)
schema = schemathesis.openapi.from_dict(_document(), config=CONFIG)
schema.app = loopback
operations = schema.exclude(path="/readyz")


@pytest.fixture
def service(app: FastAPI, client: object, finished: FinishedRun) -> FinishedRun:
    """The service with its finished run, reachable through the loopback."""
    loopback.app = app
    return finished


def _call(case: Case) -> None:
    case.headers["Host"] = "127.0.0.1:8421"
    case.call_and_validate(base_url=BASE_URL, checks=CHECKS)


@operations.parametrize()
@FEW
def test_generated_requests_get_documented_answers(case: Case, service: FinishedRun) -> None:
    _call(case)


@operations.exclude(lambda context: "{" not in context.operation.path).parametrize()
@FEW
def test_generated_requests_about_stored_things_get_documented_answers(case: Case, service: FinishedRun) -> None:
    stored = {
        "/runs": {"id": service.id},
        "/evals": {"id": service.look_evaluations[0], "a": service.base, "b": service.look_evaluations[1]},
        "/checkpoints": {"id": service.checkpoints[0], "name": "model.safetensors"},
        "/analyses": {"id": service.analysis, "name": "r2.json"},
    }.get("/" + case.path.split("/")[1], {})
    for name in case.path_parameters:
        case.path_parameters[name] = stored.get(name, case.path_parameters[name])
    _call(case)
