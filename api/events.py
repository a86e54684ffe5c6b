"""The endpoint of a run's audit trail, read by polling with a cursor."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query

from api.auth import Reader
from api.deps import MAX_INTEGER, Parts, RunId, known_query_only
from api.errors import documented
from api.schemas.common import Listing
from api.schemas.records import Event
from api.times import iso
from core.store import events, models, runs

router = APIRouter(tags=["events"], dependencies=[Depends(known_query_only)])


@router.get("/runs/{id}/events", operation_id="list_events", response_model=Listing[Event], responses=documented(404))
def list_events(
    *,
    _caller: Reader,
    parts: Parts,
    run_id: RunId,
    after: Annotated[int, Query(ge=0, le=MAX_INTEGER, description="events with a larger `seq`")] = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> dict[str, Any]:
    """Events, oldest first. ``next`` is never null: it is the cursor to poll with."""
    with parts.db.read() as session:
        page = events.page(session, runs.get(session, run_id).id, after, limit)
    last = page.items[-1].seq if page.items else after
    return {"data": [_document(row) for row in page.items], "has_more": page.has_more, "next": str(last)}


def _document(row: models.Event) -> dict[str, Any]:
    return {
        "seq": row.seq,
        "run_id": row.run_id,
        "attempt": row.attempt,
        "type": row.type,
        "at": iso(row.at),
        "payload": row.payload,
    }
