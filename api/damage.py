"""Endpoints of the damage stop and of looks."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header
from fastapi.responses import Response

from api.auth import Reader
from api.deps import After, Limit, Parts, RunId, known_query_only
from api.errors import documented
from api.pages import sliced
from api.schemas.common import Listing
from api.schemas.damage import DamageStop, Look
from api.services import damage
from core.store import looks, runs

router = APIRouter(tags=["damage"], dependencies=[Depends(known_query_only)])


@router.get(
    "/runs/{id}/damage-stop",
    operation_id="get_damage_stop",
    response_model=DamageStop,
    responses=documented(
        404,
        answers={
            200: {"headers": {"ETag": {"description": "changes with a look only", "schema": {"type": "string"}}}},
            304: {"description": "Nothing happened since the ETag in If-None-Match"},
        },
    ),
)
def get_damage_stop(
    *, _caller: Reader, parts: Parts, run_id: RunId, if_none_match: Annotated[str | None, Header()] = None
) -> Response:
    """What the frozen rule says of this run, in one sentence and in numbers."""
    with parts.db.read() as session:
        answer = parts.damage_answers.get(session, run_id)
    headers = {"ETag": answer.etag, "Cache-Control": "no-cache"}
    if if_none_match and _matches(answer.etag, if_none_match):
        return Response(status_code=304, headers=headers)
    return Response(answer.body, media_type="application/json", headers=headers)


def _matches(etag: str, header: str) -> bool:
    """Whether an If-None-Match header names this version, or any (RFC 9110, 13.1.2)."""
    return header.strip() == "*" or etag in (tag.strip().removeprefix("W/") for tag in header.split(","))


@router.get("/runs/{id}/looks", operation_id="list_looks", response_model=Listing[Look], responses=documented(404))
def list_looks(
    *, _caller: Reader, parts: Parts, run_id: RunId, after: After = None, limit: Limit = 200
) -> dict[str, Any]:
    """The run's looks by step; those that a resume went back behind are left out."""
    with parts.db.read() as session:
        rows = looks.list_(session, runs.get(session, run_id).id, whole=False)
        return sliced([damage.look(row) for row in rows], after, limit)
