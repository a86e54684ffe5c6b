"""Endpoints of prespecifications: what was frozen before a run's first look. Freezing by hand is not offered yet."""

from typing import Any

from fastapi import APIRouter, Depends

from api.auth import Reader
from api.deps import After, FullId, Limit, Parts, known_query_only
from api.errors import documented
from api.pages import listing
from api.schemas.common import Listing
from api.schemas.records import Prespecification
from api.services.prespecs import document
from core.store import prespecs

router = APIRouter(tags=["prespecifications"], dependencies=[Depends(known_query_only)])


@router.get(
    "/prespecifications",
    operation_id="list_prespecifications",
    response_model=Listing[Prespecification],
    responses=documented(),
)
def list_prespecifications(*, _caller: Reader, parts: Parts, after: After = None, limit: Limit = 50) -> dict[str, Any]:
    """Prespecifications, oldest first."""
    with parts.db.read() as session:
        return listing(prespecs.page(session, after=after, limit=limit), document)


@router.get(
    "/prespecifications/{id}",
    operation_id="get_prespecification",
    response_model=Prespecification,
    responses=documented(404),
)
def get_prespecification(*, _caller: Reader, parts: Parts, prespecification_id: FullId) -> dict[str, Any]:
    """One prespecification with its amendments."""
    with parts.db.read() as session:
        return document(prespecs.get(session, prespecification_id))
