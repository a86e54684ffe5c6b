"""Endpoint of exports: a checkpoint in another form, made and checked by a worker as a run of its own."""

from fastapi import APIRouter, BackgroundTasks, Depends, Response
from fastapi.responses import JSONResponse
from pydantic import ValidationError

from api.auth import Submitter
from api.deps import FullId, Parts, RawBody, known_query_only
from api.errors import InvalidRequest, documented
from api.runs import CREATED, IdempotencyKey
from api.schemas.conversions import ExportWish
from api.services import conversions, idempotency, submission
from api.services.runs import document
from core.recipes.jsontext import read_object

router = APIRouter(tags=["checkpoints"], dependencies=[Depends(known_query_only)])

_BODY = {
    "requestBody": {
        "required": False,
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/ExportWish"}}},
    }
}


@router.post(
    "/checkpoints/{id}/export",
    operation_id="export_checkpoint",
    status_code=201,
    responses=documented(404, 409, 410, 413, 415, answers=CREATED),
    openapi_extra=_BODY,
)
def export_checkpoint(
    *,
    caller: Submitter,
    raw: RawBody,
    parts: Parts,
    tasks: BackgroundTasks,
    checkpoint_id: FullId,
    key: IdempotencyKey = None,
) -> Response:
    """Post the run that writes a checkpoint as a bf16 folder, a GGUF file or an adapter.

    The result is a checkpoint of that run, with its files and their SHA-256; its greedy answers are compared with the stored.
    """

    def prepare() -> idempotency.Work:
        wish = _wish(raw)
        with parts.db.read() as session:
            wanted = conversions.prepare(session, checkpoint_id, wish, parts.settings)
        return lambda session: (201, document(session, submission.store(session, wanted), parts.settings))

    request = f"POST /checkpoints/{checkpoint_id}/export\n".encode() + raw
    answer = idempotency.once(parts.db, scope=caller.id, key=key, request=request, prepare=prepare)
    headers = {"Location": f"/runs/{answer.body['id']}"}
    if answer.replayed:
        headers["Idempotent-Replayed"] = "true"
    tasks.add_task(parts.ring)
    return JSONResponse(answer.body, answer.status, headers, background=tasks)


def _wish(raw: bytes) -> ExportWish:
    try:
        return ExportWish.model_validate(read_object(raw or b"{}"))
    except ValidationError as exc:
        first = exc.errors()[0]
        param = str(first["loc"][0])
        hint = (
            "allowed: format (hf, gguf, adapter), dtype (bfloat16, float16, float32), rank and records (whole numbers)"
        )
        raise InvalidRequest(f"{param}: {first['msg']}", param=param, hint=hint) from None
