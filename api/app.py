"""Puts the application together: settings, database, routes, errors, limits, the sweeper's thread, the OpenAPI document.

``create_app`` is a factory (``uvicorn api.app:create_app --factory``), so importing this module opens nothing. It never
migrates: a database at another schema is refused with a sentence that says what to do.
"""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import TypeAdapter
from starlette.concurrency import run_in_threadpool

from api import (
    analyses,
    checkpoints,
    conversions,
    curves,
    damage,
    errors,
    evaluations,
    events,
    logs,
    prespecs,
    rollouts,
    runs,
    system,
)
from api.deps import Service
from api.limits import BodyLimit
from api.origin import SameOriginOnly
from api.schemas.conversions import ExportWish
from api.schemas.runs import ForkFrom
from api.services.system import service_version
from core.home import home_id
from core.recipes.parse import Recipe
from core.settings import Settings
from core.store.database import Database
from core.store.migrations_api import require_head

log = logging.getLogger("driftline.api")

# Blocks of recipes have names that answers use too (DamageStop), so they are kept apart by a prefix.
_BLOCK = "recipe."


def create_app(settings: Settings | None = None, *, sweep: bool = True) -> FastAPI:
    """Build the application. ``sweep=False`` leaves the sweeper's thread and doorbells out, for a second api or a test.

    The lifespan raises ``SchemaMismatch`` when the database is behind or ahead of this code.
    """
    settings = settings or Settings.from_env()
    db = Database(settings.database_url)
    app = FastAPI(
        title="Driftline",
        version=service_version(),
        description="RLVR experiments on one GPU: post a recipe, watch its curves and its damage stop.",
        lifespan=partial(_lifespan, sweep=sweep),
        docs_url=None,  # the interactive pages load scripts from other hosts
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.service = Service(settings, db, partial(_ring, db, settings.broker_url) if sweep else _no_ring)
    errors.install(app)
    modules = (runs, curves, damage, evaluations, rollouts, checkpoints, conversions, analyses, prespecs, events, logs)
    for module in (*modules, system):
        app.include_router(module.router)
    app.add_middleware(BodyLimit, max_bytes=settings.max_body_bytes)
    app.add_middleware(SameOriginOnly, host=settings.host)
    app.openapi = partial(_openapi, app)  # type: ignore[method-assign]
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI, *, sweep: bool) -> AsyncIterator[None]:
    service: Service = app.state.service
    await run_in_threadpool(require_head, service.settings.database_url)
    name = await run_in_threadpool(home_id, service.settings.home)
    app.state.service = service = replace(service, home_id=name)
    sweeper = None
    if sweep:
        from worker.sweeper import Sweeper

        sweeper = Sweeper(service.db, service.settings.broker_url, service.settings)
        sweeper.start()
    try:
        yield
    finally:
        if sweeper is not None:
            await run_in_threadpool(sweeper.stop)
        service.db.dispose()


def _ring(db: Database, broker_url: str) -> None:
    """Send waiting doorbells now; what the broker does not take stays in the outbox for the sweeper."""
    from worker.doorbell import flush_outbox

    try:
        flush_outbox(db, broker_url)
    except Exception:
        log.exception("the doorbells could not be sent; the sweeper tries again")


def _no_ring() -> None:
    """Another process sends the doorbells."""


def _openapi(app: FastAPI) -> dict[str, Any]:
    """The document, once: bodies that are read as bytes get their schemas, and FastAPI's own error model is dropped."""
    if app.openapi_schema:
        return app.openapi_schema
    document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
    schemas = document["components"]["schemas"]
    bodies: dict[str, Any] = {"Recipe": Recipe, "ForkFrom": ForkFrom, "ExportWish": ExportWish}
    for name, body in bodies.items():
        schema = TypeAdapter(body).json_schema(
            ref_template=f"#/components/schemas/{_BLOCK}{{model}}", mode="validation"
        )
        schemas.update({f"{_BLOCK}{block}": part for block, part in schema.pop("$defs", {}).items()})
        schemas[name] = schema
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    app.openapi_schema = document
    return document
