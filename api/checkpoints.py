"""Endpoints of checkpoints: list, show, download a file, delete."""

import base64
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header
from fastapi.responses import Response, StreamingResponse

from api.auth import Admin, Reader
from api.deps import After, FileName, FullId, Limit, Parts, RunId, known_query_only
from api.errors import Gone, documented
from api.pages import sliced
from api.schemas.common import Listing
from api.schemas.records import Checkpoint
from api.services import checkpoints as service
from api.services.files import open_below, read_span, remove_below, span_of
from core.store import checkpoints, runs

router = APIRouter(tags=["checkpoints"], dependencies=[Depends(known_query_only)])

_BINARY: dict[str, Any] = {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}


@router.get(
    "/runs/{id}/checkpoints",
    operation_id="list_checkpoints",
    response_model=Listing[Checkpoint],
    responses=documented(404),
)
def list_checkpoints(
    *, _caller: Reader, parts: Parts, run_id: RunId, after: After = None, limit: Limit = 200
) -> dict[str, Any]:
    """A run's complete checkpoints by step."""
    with parts.db.read() as session:
        rows = checkpoints.list_(session, runs.get(session, run_id).id)
        return sliced([service.document(row, checkpoints.files(session, row.id)) for row in rows], after, limit)


@router.get(
    "/checkpoints/{id}", operation_id="get_checkpoint", response_model=Checkpoint, responses=documented(404, 410)
)
def get_checkpoint(*, _caller: Reader, parts: Parts, checkpoint_id: FullId) -> dict[str, Any]:
    """One checkpoint and its files."""
    with parts.db.read() as session:
        row = service.present(session, checkpoint_id)
        return service.document(row, checkpoints.files(session, row.id))


@router.get(
    "/checkpoints/{id}/files/{name}",
    operation_id="download_checkpoint_file",
    response_class=Response,
    responses=documented(
        404,
        410,
        416,
        answers={
            200: _BINARY | {"description": "the file"},
            206: _BINARY | {"description": "the bytes of the Range header"},
            304: {"description": "the file is the one in If-None-Match"},
        },
    ),
)
def download_checkpoint_file(
    *,
    _caller: Reader,
    parts: Parts,
    checkpoint_id: FullId,
    name: FileName,
    wanted: Annotated[str | None, Header(alias="Range")] = None,
    if_range: Annotated[str | None, Header()] = None,
    if_none_match: Annotated[str | None, Header()] = None,
) -> Response:
    """Stream one file; ``ETag`` is its SHA-256, and one byte range may be asked for."""
    with parts.db.read() as session:
        row, file = service.file_of(session, checkpoint_id, name)
    etag = f'"{file.sha256}"'
    headers = {
        "ETag": etag,
        "Accept-Ranges": "bytes",
        "Cache-Control": "private, max-age=31536000, immutable",
        "Repr-Digest": f"sha-256=:{base64.b64encode(bytes.fromhex(file.sha256)).decode()}:",
        "Content-Disposition": f'attachment; filename="{row.id}-{_plain(file.name)}"',
    }
    if if_none_match and etag in (tag.strip() for tag in if_none_match.split(",")):
        return Response(status_code=304, headers=headers)
    span = span_of(wanted if if_range in {None, etag} else None, file.bytes)
    opened = open_below(parts.settings.home, f"{row.path}/{file.name}")
    if opened.seek(0, 2) != file.bytes:
        opened.close()
        raise Gone("the file on disk does not have the recorded size", code="checkpoint_damaged")
    headers["Content-Length"] = str(span.end - span.start)
    if span.partial:
        headers["Content-Range"] = f"bytes {span.start}-{span.end - 1}/{span.size}"
    return StreamingResponse(
        read_span(opened, span), 206 if span.partial else 200, headers, media_type="application/octet-stream"
    )


@router.delete(
    "/checkpoints/{id}",
    operation_id="delete_checkpoint",
    status_code=204,
    responses=documented(404, 409, 410, 413, 415),
)
def delete_checkpoint(*, _caller: Admin, parts: Parts, checkpoint_id: FullId) -> None:
    """Delete a checkpoint that no run needs to continue."""
    with parts.db.write() as session:
        row = service.delete(session, checkpoint_id)
    remove_below(parts.settings.home, row.path)


def _plain(name: str) -> str:
    return "".join(char if char.isascii() and (char.isalnum() or char in "._-") else "_" for char in name)
