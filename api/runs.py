"""Endpoints of runs: post, list, show, cancel, pause, resume, fork, delete."""

import shutil
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, BackgroundTasks, Depends, Header, Query, Response
from fastapi.responses import JSONResponse
from pydantic import ValidationError
from sqlalchemy.orm import Session

from api.auth import Admin, Reader, Submitter
from api.deps import After, Limit, Parts, RawBody, RunId, known_query_only
from api.errors import InvalidRequest, documented
from api.pages import listing
from api.schemas.common import Listing, Time
from api.schemas.runs import DryRun, ForkFrom, Kind, Run, RunStateName, RunSummary
from api.services import forks, idempotency, plans, submission
from api.services.runs import document, summary
from api.times import from_iso
from core.recipes.jsontext import read_object
from core.store import runs

router = APIRouter(tags=["runs"], dependencies=[Depends(known_query_only)])

IdempotencyKey = Annotated[
    str | None, Header(alias="Idempotency-Key", description="repeats within 24 h get the first answer")
]
CREATED: dict[int, dict[str, Any]] = {
    201: {
        "model": Run,
        "description": "The run was accepted",
        "headers": {
            "Location": {"description": "the run's path", "schema": {"type": "string"}},
            "Idempotent-Replayed": {"description": "`true` on a repeated answer", "schema": {"type": "string"}},
        },
    }
}
_RECIPE_BODY = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Recipe"}}},
    }
}
_FORK_BODY = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/ForkFrom"}}},
    }
}


@router.post(
    "/runs",
    operation_id="create_run",
    status_code=201,
    response_model=Run,
    responses=documented(
        409,
        413,
        415,
        answers=CREATED | {200: {"model": DryRun, "description": "`dry_run`: what would happen; nothing was stored"}},
    ),
    openapi_extra=_RECIPE_BODY,
)
def create_run(
    *,
    caller: Submitter,
    raw: RawBody,
    parts: Parts,
    tasks: BackgroundTasks,
    key: IdempotencyKey = None,
    dry_run: Annotated[bool, Query(description="validate and plan, store nothing")] = False,
    probe: Annotated[
        bool, Query(description="measure the recipe for two minutes on a worker instead of running it")
    ] = False,
) -> Response:
    """Accept a recipe as a run, or say everything that is wrong with it."""
    if probe and dry_run:
        raise InvalidRequest(
            "a dry run stores nothing, and a probe is a run", param="probe", hint="ask for one of dry_run and probe"
        )
    if dry_run:
        with parts.db.read() as session:
            return JSONResponse(plans.dry_run(session, submission.read(session, raw, parts.settings), parts.settings))

    def prepare() -> idempotency.Work:
        with parts.db.read() as session:
            wanted = submission.read(session, raw, parts.settings)
            submission.refuse_missing(wanted)
            plans.refuse_unfit(session, wanted, parts.settings)
            if probe:
                submission.refuse_unprobeable(wanted)
        return lambda session: _stored(session, parts, wanted, probe=probe)

    request = (b"POST /runs?probe=true\n" if probe else b"POST /runs\n") + raw
    answer = idempotency.once(parts.db, scope=caller.id, key=key, request=request, prepare=prepare)
    return _created(answer, tasks, parts.ring)


@router.get("/runs", operation_id="list_runs", response_model=Listing[RunSummary], responses=documented())
def list_runs(
    *,
    _caller: Reader,
    parts: Parts,
    after: After = None,
    limit: Limit = 50,
    kind: Kind | None = None,
    state: RunStateName | None = None,
    tag: Annotated[str | None, Query(max_length=64)] = None,
    model: Annotated[str | None, Query(max_length=255)] = None,
    created_from: Annotated[Time | None, Query(max_length=40, description="inclusive; ISO 8601 with offset")] = None,
    created_to: Annotated[Time | None, Query(max_length=40, description="exclusive; ISO 8601 with offset")] = None,
) -> dict[str, Any]:
    """Runs, newest first."""
    with parts.db.read() as session:
        page = runs.list_page(
            session,
            after=after,
            limit=limit,
            kind=kind,
            state=state,
            tag=tag,
            model=model,
            created_from=_moment(created_from, "created_from"),
            created_to=_moment(created_to, "created_to"),
        )
        tags = runs.tags_of(session, [run.id for run in page.items])
        return listing(page, lambda run: summary(run, tags[run.id]))


@router.get("/runs/{id}", operation_id="get_run", response_model=Run, responses=documented(404))
def get_run(*, _caller: Reader, parts: Parts, run_id: RunId) -> dict[str, Any]:
    """One run: state, liveness with its reason, progress, queue, ETA, attempts, recipe."""
    with parts.db.read() as session:
        return document(session, runs.get(session, run_id), parts.settings)


@router.post(
    "/runs/{id}/cancel", operation_id="cancel_run", response_model=Run, responses=documented(404, 409, 413, 415)
)
def cancel_run(*, _caller: Submitter, parts: Parts, run_id: RunId) -> dict[str, Any]:
    """Cancel at once what waits; ask what runs to write a checkpoint and end."""
    return _change(parts, run_id, runs.request_cancel)


@router.post("/runs/{id}/pause", operation_id="pause_run", response_model=Run, responses=documented(404, 409, 413, 415))
def pause_run(*, _caller: Submitter, parts: Parts, run_id: RunId) -> dict[str, Any]:
    """Ask a running run to write a checkpoint and let go of its worker."""
    return _change(parts, run_id, runs.request_pause)


@router.post(
    "/runs/{id}/resume", operation_id="resume_run", response_model=Run, responses=documented(404, 409, 413, 415)
)
def resume_run(*, _caller: Submitter, parts: Parts, tasks: BackgroundTasks, run_id: RunId) -> dict[str, Any]:
    """Put a paused run back into the queue; it continues from its last checkpoint as a new attempt."""
    body = _change(parts, run_id, runs.resume)
    tasks.add_task(parts.ring)
    return body


@router.post(
    "/runs/{id}/fork",
    operation_id="fork_run",
    status_code=201,
    response_model=Run,
    responses=documented(404, 409, 413, 415, answers=CREATED),
    openapi_extra=_FORK_BODY,
)
def fork_run(
    *, caller: Submitter, raw: RawBody, parts: Parts, tasks: BackgroundTasks, run_id: RunId, key: IdempotencyKey = None
) -> Response:
    """A child run that begins from a checkpoint with its optimizer state, or from scratch, with overrides."""

    def prepare() -> idempotency.Work:
        wish = _fork_body(raw)
        with parts.db.read() as session:
            fork = forks.prepare(session, runs.get(session, run_id), wish, parts.settings)
        return lambda session: _stored(session, parts, fork.submission, fork.lineage)

    request = f"POST /runs/{run_id}/fork\n".encode() + raw
    answer = idempotency.once(parts.db, scope=caller.id, key=key, request=request, prepare=prepare)
    return _created(answer, tasks, parts.ring)


@router.delete("/runs/{id}", operation_id="delete_run", status_code=204, responses=documented(404, 409, 413, 415))
def delete_run(*, _caller: Admin, parts: Parts, run_id: RunId) -> None:
    """Delete a final run's curves, records and files; its row, events and prespecification stay as a tombstone."""
    with parts.db.write() as session:
        run = runs.get(session, run_id)
        forks.refuse_while_needed(session, run)
        runs.delete(session, run.id)
    shutil.rmtree(parts.settings.run_dir(run.id), ignore_errors=True)


def _change(parts: Parts, run_id: str, change: Callable[[Session, str], Any]) -> dict[str, Any]:
    with parts.db.write() as session:
        run = change(session, runs.get(session, run_id).id)
        return document(session, run, parts.settings)


def _stored(
    session: Session,
    parts: Parts,
    wanted: submission.Submission,
    lineage: submission.Lineage | None = None,
    *,
    probe: bool = False,
) -> tuple[int, dict[str, Any]]:
    run = submission.store(session, wanted, lineage, probe=probe)
    return 201, document(session, run, parts.settings)


def _created(answer: idempotency.Answer, tasks: BackgroundTasks, ring: Callable[[], None]) -> Response:
    headers = {"Location": f"/runs/{answer.body['id']}"}
    if answer.replayed:
        headers["Idempotent-Replayed"] = "true"
    tasks.add_task(ring)
    return JSONResponse(answer.body, answer.status, headers, background=tasks)


def _fork_body(raw: bytes) -> ForkFrom:
    try:
        return ForkFrom.model_validate(read_object(raw or b"{}"))
    except ValidationError as exc:
        first = exc.errors()[0]
        param = str(first["loc"][0])
        hint = 'allowed: from_step (a step, "last", "best" or "scratch") and overrides (an object)'
        raise InvalidRequest(f"{param}: {first['msg']}", param=param, hint=hint) from None


def _moment(text: str | None, param: str) -> float | None:
    if text is None:
        return None
    try:
        return from_iso(text)
    except (ValueError, OverflowError) as exc:
        raise InvalidRequest(f"{param}: {exc}", param=param, hint="for example 2026-01-31T12:00:00Z") from None
