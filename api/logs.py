"""The endpoint of a run's logs."""

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query

from api.auth import Reader
from api.deps import Parts, RunId, known_query_only
from api.errors import documented
from api.schemas.common import Listing
from api.schemas.records import LogEntry
from api.services import attempts
from api.services import logs as service
from core.store import runs

router = APIRouter(tags=["logs"], dependencies=[Depends(known_query_only)])

_NAME = re.compile(r"attempt-(\d{1,9})\.log")


@router.get("/runs/{id}/logs", operation_id="get_logs", response_model=Listing[LogEntry], responses=documented(404))
def get_logs(
    *,
    _caller: Reader,
    parts: Parts,
    run_id: RunId,
    after: Annotated[
        str | None, Query(max_length=40, description="the `next` of an earlier answer: what was written since")
    ] = None,
    tail: Annotated[
        int, Query(ge=1, le=5000, description="lines: the last so many, or at most so many after a cursor")
    ] = 200,
    level: Annotated[
        Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"] | None, Query(description="this level and above")
    ] = None,
    search: Annotated[str | None, Query(max_length=200, description="found anywhere, letter case ignored")] = None,
    attempt: Annotated[int | None, Query(ge=1, le=10**9)] = None,
) -> dict[str, Any]:
    """The last lines of the runners' logs, or what followed a cursor. ``next`` is never null: poll with it."""
    with parts.db.read() as session:
        run = runs.get(session, run_id)
        if attempt is not None:
            attempts.require(session, run.id, attempt)
    files = _files(parts.settings.run_dir(run.id) / "logs", attempt)
    wanted = service.Wanted(level=level, search=search)
    page = service.follow(files, wanted, tail, after) if after is not None else service.tail(files, wanted, tail)
    lines = [{"attempt": line.attempt, "level": line.level, "text": line.text} for line in page.entries]
    return {"data": lines, "has_more": page.has_more, "next": page.next}


def _files(folder: Path, attempt: int | None) -> list[tuple[int, Path]]:
    """Log files by rising attempt. The folder is the service's own, named by a run's id; links in it are passed over."""
    if not folder.is_dir():
        return []
    found = [
        (int(match[1]), path)
        for path in folder.iterdir()
        if (match := _NAME.fullmatch(path.name)) and not path.is_symlink() and path.is_file()
    ]
    return sorted((number, path) for number, path in found if attempt in {None, number})
