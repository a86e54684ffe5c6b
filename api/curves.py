"""The endpoint of curves. It writes its answer itself, since checking every point again would cost more than reading them."""

import csv
import io
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query
from fastapi.responses import JSONResponse, Response

from api.auth import Reader
from api.deps import Parts, RunId, Step, known_query_only
from api.errors import InvalidRequest, documented
from api.schemas.curves import Curves
from api.services import attempts
from api.services import curves as service
from core.store import metrics, runs

router = APIRouter(tags=["curves"], dependencies=[Depends(known_query_only)])

MAX_KEYS = 200
MAX_POINTS = 100_000


@router.get(
    "/runs/{id}/curves",
    operation_id="get_curves",
    response_model=Curves,
    responses=documented(
        404,
        answers={
            200: {"description": "JSON, or CSV with the columns key, step, value, time", "content": {"text/csv": {}}}
        },
    ),
)
def get_curves(
    *,
    _caller: Reader,
    parts: Parts,
    run_id: RunId,
    keys: Annotated[str | None, Query(max_length=8000, description="names joined by commas; all by default")] = None,
    from_step: Step = None,
    to_step: Step = None,
    max_points: Annotated[int, Query(ge=1, le=MAX_POINTS, description="per key")] = 500,
    output: Annotated[Literal["json", "csv"], Query(alias="format")] = "json",
    attempt: Annotated[
        str, Query(pattern="^(current|[1-9][0-9]{0,8})$", description="`current`, or the number of one attempt")
    ] = "current",
) -> Response:
    """Curves, thinned so that points do not move while the run grows."""
    chosen = int(attempt) if attempt != "current" else metrics.CURRENT
    with parts.db.read() as session:
        run = runs.get(session, run_id)
        if isinstance(chosen, int):
            attempts.require(session, run.id, chosen)
        found = metrics.curves(
            session,
            run.id,
            keys=_names(keys),
            from_step=from_step,
            to_step=to_step,
            max_points=max_points,
            attempt=chosen,
        )
        if output == "json":
            return JSONResponse(service.document(session, run.id, found, chosen))
    table = io.StringIO()
    writer = csv.writer(table)
    writer.writerow(["key", "step", "value", "time"])
    writer.writerows(service.csv_rows(found))
    return Response(table.getvalue(), media_type="text/csv")


def _names(keys: str | None) -> list[str] | None:
    if keys is None:
        return None
    names = [name.strip() for name in keys.split(",") if name.strip()]
    if not names or len(names) > MAX_KEYS:
        raise InvalidRequest(
            f"keys names {len(names)} curves", param="keys", hint=f"give 1 to {MAX_KEYS} names joined by commas"
        )
    return names
