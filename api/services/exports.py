"""Records and training samples as streamed files: their media types, names and what OpenAPI says of them."""

from typing import Any, Literal

from fastapi.responses import StreamingResponse

from api.errors import Conflict
from api.services.rollouts import PARQUET
from api.times import iso
from core.evals import export
from core.store.database import Database
from core.store.models import Evaluation

RecordFormat = Literal["parquet", "jsonl", "lm_eval"]
RolloutFormat = Literal["parquet", "jsonl"]
JSONL = "application/x-ndjson"


def documented_files() -> dict[int, dict[str, Any]]:
    """What a successful answer is, for the OpenAPI document."""
    binary = {"schema": {"type": "string", "format": "binary"}}
    return {200: {"description": "the file, streamed", "content": {PARQUET: binary, JSONL: binary}}}


def records(db: Database, row: Evaluation, output: RecordFormat) -> StreamingResponse:
    """An evaluation's records. Raises :class:`Conflict` while it is not finished."""
    if row.status != "finished":
        raise Conflict(
            f"evaluation {row.id} is not finished, so its records are not complete",
            code="not_finished",
            hint=f"GET /evals/{row.id} tells its status; GET /evals/{row.id}/items shows what is there",
        )
    match output:
        case "parquet":
            rows = export.record_rows(db, row)
            return _file(export.parquet(rows, export.RECORD_COLUMNS), f"records-{row.id}.parquet", PARQUET)
        case "jsonl":
            return _file(export.jsonl(export.record_rows(db, row)), f"records-{row.id}.jsonl", JSONL)
        case "lm_eval":
            name = export.lm_eval_name(row, iso(row.finished_at) or "")
            return _file(export.lm_eval(db, row), name, JSONL)


def rollouts(
    db: Database, run_id: str, output: RolloutFormat, *, step: int | None, superseded: bool
) -> StreamingResponse:
    """A run's training samples, all or those of one step."""
    rows = export.rollout_rows(db, run_id, step=step, superseded=superseded)
    if output == "parquet":
        return _file(export.parquet(rows, export.ROLLOUT_COLUMNS), f"rollouts-{run_id}.parquet", PARQUET)
    return _file(export.jsonl(rows), f"rollouts-{run_id}.jsonl", JSONL)


def _file(chunks: Any, name: str, media: str) -> StreamingResponse:
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return StreamingResponse((chunk for chunk in chunks if chunk), media_type=media, headers=headers)
