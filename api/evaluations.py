"""Endpoints of evaluations: list, items, the difference of two, files of records."""

from typing import Annotated, Any

from fastapi import APIRouter, BackgroundTasks, Depends, Header, Query, Response
from fastapi.responses import JSONResponse, StreamingResponse

from api.auth import Reader, Submitter
from api.deps import After, FullId, HexId, Limit, Parts, RunId, known_query_only
from api.errors import documented
from api.pages import listing, sliced
from api.schemas.common import Listing
from api.schemas.evaluations import Diff, Evaluation, Flip, Item
from api.schemas.runs import Run
from api.services import comparisons, idempotency, regrading, submission
from api.services import evaluations as service
from api.services import exports as files
from api.services.runs import document as run_document
from core.store import evaluations, regrades, runs

_CREATED: dict[int, dict[str, Any]] = {
    201: {
        "model": Run,
        "description": "The run that will grade was accepted",
        "headers": {"Location": {"description": "the run's path", "schema": {"type": "string"}}},
    }
}

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
        later = {row.id: regrades.list_for(session, row.id) for row in rows}
        return sliced([service.document(row, later[row.id]) for row in rows], after, limit)


@router.get("/evals/{id}", operation_id="get_evaluation", response_model=Evaluation, responses=documented(404))
def get_evaluation(*, _caller: Reader, parts: Parts, evaluation_id: FullId) -> dict[str, Any]:
    """One evaluation."""
    with parts.db.read() as session:
        row = evaluations.get(session, evaluation_id)
        return service.document(row, regrades.list_for(session, row.id))


@router.get(
    "/evals/{id}/items", operation_id="list_items", response_model=Listing[Item], responses=documented(404, 410)
)
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
    changed_by: Annotated[
        str | None,
        Query(pattern="^[0-9a-f]{12}$", description="a later grading: only records to which it gives another verdict"),
    ] = None,
) -> dict[str, Any]:
    """The records of an evaluation in the suite's order, each compared with base."""
    with parts.db.read() as session:
        row = evaluations.with_records(session, evaluation_id)
        if against is not None:
            comparisons.refuse_unlike(row, evaluations.with_records(session, against), param="against")
        if changed_by is not None:
            service.refuse_foreign_grading(row, regrades.get(session, changed_by))
        page = evaluations.items_page(
            session,
            row.id,
            after=after,
            limit=limit,
            verdict=verdict,
            flip=flip,
            against=against or service.base_of(session, row),
            changed_by=changed_by,
        )
        later = regrades.of_records(session, [entry.record.id for entry in page.items])
        return listing(page, lambda entry: service.item(entry, row, later.get(entry.record.id, [])))


@router.get(
    "/evals/{id}/export",
    operation_id="export_records",
    response_class=StreamingResponse,
    responses=documented(404, 409, 410, answers=files.documented_files()),
)
def export_records(
    *,
    _caller: Reader,
    parts: Parts,
    evaluation_id: FullId,
    output: Annotated[files.RecordFormat, Query(alias="format")],
) -> StreamingResponse:
    """All records of a finished evaluation as one file, streamed."""
    with parts.db.read() as session:
        row = evaluations.with_records(session, evaluation_id)
    return files.records(parts.db, row, output)


@router.get("/evals/{a}/diff/{b}", operation_id="diff_evaluations", response_model=Diff, responses=documented(404, 410))
def diff_evaluations(
    *,
    _caller: Reader,
    parts: Parts,
    a: HexId,
    b: HexId,
    verdicts: Annotated[
        str, Query(max_length=255, description="original, latest, or a verifier version that graded both")
    ] = comparisons.ORIGINAL,
    noise: Annotated[
        str | None,
        Query(
            pattern="^[0-9a-f]{12},[0-9a-f]{12}$",
            description="two evaluations of one model for the noise floor; by default the run's two base evaluations",
        ),
    ] = None,
) -> dict[str, Any]:
    """What ``b`` lost and gained against ``a``, item by item, with an exact test, beside the noise floor."""
    with parts.db.read() as session:
        pair = [evaluations.with_records(session, name) for name in noise.split(",")] if noise else []
        return comparisons.diff(
            session,
            evaluations.with_records(session, a),
            evaluations.with_records(session, b),
            verdicts=verdicts,
            noise=(pair[0], pair[1]) if pair else None,
        )


@router.post(
    "/evals/{id}/regrade",
    operation_id="regrade_evaluation",
    status_code=201,
    response_model=Run,
    responses=documented(404, 409, 413, 415, answers=_CREATED),
)
def regrade_evaluation(
    *,
    caller: Submitter,
    parts: Parts,
    tasks: BackgroundTasks,
    evaluation_id: FullId,
    key: Annotated[str | None, Header(alias="Idempotency-Key", description="repeats get the first answer")] = None,
) -> Response:
    """A run that grades the evaluation's stored answers again with this release's verifier; the original verdicts stay."""

    def prepare() -> idempotency.Work:
        with parts.db.read() as session:
            recipe = regrading.recipe_of(session, evaluations.get(session, evaluation_id))
            wanted = submission.read(session, recipe, parts.settings)
            submission.refuse_missing(wanted)
        return lambda session: (201, run_document(session, submission.store(session, wanted), parts.settings))

    request = f"POST /evals/{evaluation_id}/regrade".encode()
    answer = idempotency.once(parts.db, scope=caller.id, key=key, request=request, prepare=prepare)
    headers = {"Location": f"/runs/{answer.body['id']}"}
    if answer.replayed:
        headers["Idempotent-Replayed"] = "true"
    tasks.add_task(parts.ring)
    return JSONResponse(answer.body, answer.status, headers, background=tasks)
