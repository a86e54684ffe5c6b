"""Endpoints of evaluations: list, items, and the difference of two."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query

from api.auth import Reader
from api.deps import After, FullId, HexId, Limit, Parts, RunId, known_query_only
from api.errors import documented
from api.pages import listing, sliced
from api.schemas.common import Listing
from api.schemas.evaluations import Diff, Evaluation, Flip, Item
from api.services import evaluations as service
from core.store import evaluations, runs

router = APIRouter(tags=["evaluations"], dependencies=[Depends(known_query_only)])


@router.get(
    "/runs/{id}/evals", operation_id="list_evaluations", response_model=Listing[Evaluation], responses=documented(404)
)
def list_evaluations(
    *,
    _caller: Reader,
    parts: Parts,
    run_id: RunId,
    after: After = None,
    limit: Limit = 200,
    suite: Annotated[str | None, Query(max_length=255)] = None,
    purpose: Annotated[str | None, Query(max_length=32)] = None,
    superseded: Annotated[bool, Query(description="also those that a resume went back behind")] = False,
) -> dict[str, Any]:
    """A run's evaluations in the order they were started."""
    with parts.db.read() as session:
        rows = evaluations.list_for_run(
            session, runs.get(session, run_id).id, suite=suite, purpose=purpose, superseded=superseded
        )
        return sliced([service.document(row) for row in rows], after, limit)


@router.get("/evals/{id}", operation_id="get_evaluation", response_model=Evaluation, responses=documented(404))
def get_evaluation(*, _caller: Reader, parts: Parts, evaluation_id: FullId) -> dict[str, Any]:
    """One evaluation."""
    with parts.db.read() as session:
        return service.document(evaluations.get(session, evaluation_id))


@router.get("/evals/{id}/items", operation_id="list_items", response_model=Listing[Item], responses=documented(404))
def list_items(
    *,
    _caller: Reader,
    parts: Parts,
    evaluation_id: FullId,
    after: After = None,
    limit: Limit = 50,
    verdict: Annotated[str | None, Query(max_length=16)] = None,
    flip: Flip | None = None,
    against: Annotated[
        str | None,
        Query(pattern="^[0-9a-f]{12}$", description="evaluation to compare with; by default the run's base evaluation"),
    ] = None,
) -> dict[str, Any]:
    """The records of an evaluation in the suite's order, each compared with base."""
    with parts.db.read() as session:
        row = evaluations.get(session, evaluation_id)
        if against is not None:
            evaluations.get(session, against)
        page = evaluations.items_page(
            session,
            row.id,
            after=after,
            limit=limit,
            verdict=verdict,
            flip=flip,
            against=against or service.base_of(session, row),
        )
        return listing(page, lambda entry: service.item(entry, row))


@router.get("/evals/{a}/diff/{b}", operation_id="diff_evaluations", response_model=Diff, responses=documented(404))
def diff_evaluations(*, _caller: Reader, parts: Parts, a: HexId, b: HexId) -> dict[str, Any]:
    """What ``b`` lost and gained against ``a``, item by item, with an exact test."""
    with parts.db.read() as session:
        return service.diff(session, evaluations.get(session, a), evaluations.get(session, b))
