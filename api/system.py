"""Endpoints about the service itself, and the plain page. Health and versions ask for no token: probes have none."""

from pathlib import Path
from typing import Any

from fastapi import APIRouter, Depends
from fastapi.responses import FileResponse, JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST

from api.auth import Reader
from api.deps import Parts, known_query_only
from api.errors import documented
from api.schemas.system import Capabilities, Health, Readiness, Version
from api.services import system

router = APIRouter(tags=["system"], dependencies=[Depends(known_query_only)])

_WEB = Path(__file__).parent / "web"
_PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_PAGE_HEADERS = {"Content-Security-Policy": _PAGE_POLICY, "Cache-Control": "no-cache"}
_FILES = {
    "analysis.js": "text/javascript",
    "chart.js": "text/javascript",
    "evaluations.js": "text/javascript",
    "page.js": "text/javascript",
    "page.css": "text/css",
}


@router.get("/healthz", operation_id="get_health", response_model=Health, responses=documented())
def get_health(parts: Parts) -> dict[str, str]:
    """The process answers, and for which home. Neither the database nor anything else is asked."""
    return {"status": "ok", "home_id": parts.home_id}


@router.get(
    "/readyz",
    operation_id="get_readiness",
    response_model=Readiness,
    responses=documented(
        answers={503: {"model": Readiness, "description": "Some part is not ready; the body says which"}}
    ),
)
def get_readiness(parts: Parts) -> Response:
    """The database is at this code's schema, the broker answers, and a worker was heard lately."""
    found = system.readiness(parts.db, parts.settings)
    return JSONResponse(found, 200 if found["status"] == "ready" else 503)


@router.get("/version", operation_id="get_version", response_model=Version, responses=documented())
def get_version() -> dict[str, Any]:
    """Versions of the service, its schema, and the packages results depend on."""
    return system.versions()


@router.get("/capabilities", operation_id="get_capabilities", response_model=Capabilities, responses=documented())
def get_capabilities(_caller: Reader, parts: Parts) -> dict[str, Any]:
    """Algorithms, suites, verifiers and models by name, and the devices of live workers."""
    with parts.db.read() as session:
        return system.capabilities(session, parts.settings)


@router.get(
    "/metrics",
    operation_id="get_metrics",
    response_class=Response,
    responses=documented(
        answers={
            200: {"description": "Prometheus text format", "content": {"text/plain": {"schema": {"type": "string"}}}}
        }
    ),
)
def get_metrics(_caller: Reader, parts: Parts) -> Response:
    """Runs by state, queue depth, unsent doorbells and the age of workers' heartbeats."""
    return Response(system.exposition(parts.db), media_type=CONTENT_TYPE_LATEST)


@router.get("/", include_in_schema=False)
def get_page() -> Response:
    """The plain page."""
    return FileResponse(_WEB / "index.html", media_type="text/html", headers=_PAGE_HEADERS)


def _add_file(name: str, kind: str) -> None:
    """One fixed route per file, so that no request chooses a path."""

    def get_file() -> Response:
        return FileResponse(_WEB / name, media_type=kind, headers=_PAGE_HEADERS)

    router.add_api_route(f"/web/{name}", get_file, include_in_schema=False)


for _name, _kind in _FILES.items():
    _add_file(_name, _kind)
