"""The endpoint of training samples, as JSON or Parquet."""

import io
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query
from fastapi.responses import Response, StreamingResponse

from api.auth import Reader
from api.deps import MAX_INTEGER, After, Limit, Parts, RunId, Step, known_query_only
from api.errors import documented
from api.pages import listing
from api.schemas.common import Listing
from api.schemas.records import Rollout
from api.services import exports as files
from api.services import rollouts as service
from core.store import rollouts, runs

router = APIRouter(tags=["rollouts"], dependencies=[Depends(known_query_only)])

Tokens = Annotated[int | None, Query(ge=0, le=MAX_INTEGER)]
Reward = Annotated[float | None, Query(allow_inf_nan=False, ge=-1e300, le=1e300)]


@router.get(
    "/runs/{id}/rollouts",
    operation_id="list_rollouts",
    response_model=Listing[Rollout],
    responses=documented(
        404,
        answers={
            200: {
                "description": "JSON, or the page as a Parquet file with its cursor in the header Driftline-Next",
                "content": {service.PARQUET: {"schema": {"type": "string", "format": "binary"}}},
            }
        },
    ),
)
def list_rollouts(
    *,
    _caller: Reader,
    parts: Parts,
    run_id: RunId,
    after: After = None,
    limit: Limit = 50,
    step: Step = None,
    reward_min: Reward = None,
    reward_max: Reward = None,
    verdict: Annotated[str | None, Query(max_length=16)] = None,
    tokens_min: Tokens = None,
    tokens_max: Tokens = None,
    zero_variance: Annotated[bool | None, Query(description="samples of groups that gave no gradient")] = None,
    text: Annotated[str | None, Query(max_length=500, description="found anywhere, letter case ignored")] = None,
    superseded: Annotated[bool, Query(description="also samples that a resume went back behind")] = False,
    output: Annotated[Literal["json", "parquet"], Query(alias="format")] = "json",
) -> Any:
    """Training samples by step, with reward terms, advantages and log-probabilities."""
    with parts.db.read() as session:
        page = rollouts.page(
            session,
            runs.get(session, run_id).id,
            after=after,
            limit=limit,
            step=step,
            reward_min=reward_min,
            reward_max=reward_max,
            verdict=verdict,
            tokens_min=tokens_min,
            tokens_max=tokens_max,
            zero_variance=zero_variance,
            text=text,
            superseded=superseded,
        )
        found = listing(page, service.document)
    if output == "json":
        return found
    file = io.BytesIO()
    service.write_parquet(found["data"], file)
    headers = {"Driftline-Next": found["next"]} if found["next"] else {}
    headers["Content-Disposition"] = 'attachment; filename="rollouts.parquet"'
    return Response(file.getvalue(), media_type=service.PARQUET, headers=headers)


@router.get(
    "/runs/{id}/rollouts/export",
    operation_id="export_rollouts",
    response_class=StreamingResponse,
    responses=documented(404, answers=files.documented_files()),
)
def export_rollouts(
    *,
    _caller: Reader,
    parts: Parts,
    run_id: RunId,
    output: Annotated[files.RolloutFormat, Query(alias="format")],
    step: Step = None,
    superseded: Annotated[bool, Query(description="also samples that a resume went back behind")] = False,
) -> StreamingResponse:
    """All training samples of a run, or of one of its steps, as one file, streamed."""
    with parts.db.read() as session:
        run = runs.get(session, run_id)
    return files.rollouts(parts.db, run.id, output, step=step, superseded=superseded)
