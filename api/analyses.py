"""Endpoints of analyses and their figures."""

from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any, BinaryIO

from fastapi import APIRouter, Depends
from fastapi.responses import Response, StreamingResponse

from api.auth import Reader
from api.deps import After, FileName, FullId, Limit, Parts, RunId, known_query_only
from api.errors import NotFound, documented
from api.pages import sliced
from api.schemas.common import Listing
from api.schemas.records import Analysis, AnalysisSummary
from api.services import analyses as service
from api.services.files import open_below
from api.services.rollouts import PARQUET
from core.store import analyses, runs

router = APIRouter(tags=["analyses"], dependencies=[Depends(known_query_only)])

_TYPES = {".json": "application/json", ".png": "image/png", ".svg": "image/svg+xml"}


@router.get(
    "/runs/{id}/analyses",
    operation_id="list_analyses",
    response_model=Listing[AnalysisSummary],
    responses=documented(404),
)
def list_analyses(
    *, _caller: Reader, parts: Parts, run_id: RunId, after: After = None, limit: Limit = 200
) -> dict[str, Any]:
    """The analyses of a run: those made about it, and those made by it."""
    with parts.db.read() as session:
        rows = analyses.list_for_run(session, runs.get(session, run_id).id)
        return sliced([service.summary(row) for row in rows], after, limit)


@router.get("/analyses/{id}", operation_id="get_analysis", response_model=Analysis, responses=documented(404))
def get_analysis(*, _caller: Reader, parts: Parts, analysis_id: FullId) -> dict[str, Any]:
    """One analysis with its result."""
    with parts.db.read() as session:
        return service.document(analyses.get(session, analysis_id))


@router.get(
    "/analyses/{id}/figures/{name}",
    operation_id="get_figure",
    response_class=Response,
    responses=documented(
        404,
        410,
        answers={200: {"description": "Plotly JSON, PNG or SVG", "content": {kind: {} for kind in _TYPES.values()}}},
    ),
)
def get_figure(*, _caller: Reader, parts: Parts, analysis_id: FullId, name: FileName) -> Response:
    """One figure, by a name from the analysis' list."""
    with parts.db.read() as session:
        row = analyses.get(session, analysis_id)
    kind = _TYPES.get(PurePosixPath(name).suffix)
    if name not in row.figures or kind is None:
        raise NotFound(
            "this analysis has no such figure", param="name", hint=f"GET /analyses/{row.id} lists its figures"
        )
    with open_below(parts.settings.home, f"analyses/{row.id}/{name}") as file:
        content = file.read()
    # An SVG can hold scripts; shown as a page of its own it must be able to run none.
    headers = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; sandbox"}
    return Response(content, media_type=kind, headers=headers)


@router.get(
    "/analyses/{id}/tables/{name}",
    operation_id="get_table",
    response_class=Response,
    responses=documented(404, 410, answers={200: {"description": "Parquet", "content": {PARQUET: {}}}}),
)
def get_table(*, _caller: Reader, parts: Parts, analysis_id: FullId, name: FileName) -> StreamingResponse:
    """One table of rows that are too many for the result, by a name from its ``tables``."""
    with parts.db.read() as session:
        row = analyses.get(session, analysis_id)
    if name not in row.result.get("tables", ()):
        raise NotFound(
            "this analysis has no such table",
            param="name",
            hint=f"the result of GET /analyses/{row.id} lists its tables",
        )
    file = open_below(parts.settings.home, f"analyses/{row.id}/{name}")
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return StreamingResponse(_blocks(file), media_type=PARQUET, headers=headers)


def _blocks(file: BinaryIO) -> Iterator[bytes]:
    with file:
        while block := file.read(1 << 20):
            yield block
