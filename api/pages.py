"""From a repository's answer to the contract's list. It converts and decides nothing."""

from collections.abc import Callable
from typing import Any, TypeVar

from api.errors import InvalidRequest
from core.store.paging import Page

T = TypeVar("T")


def listing(page: Page[T], convert: Callable[[T], dict[str, Any]]) -> dict[str, Any]:
    """``{"data", "has_more", "next"}`` with every row converted."""
    return {"data": [convert(row) for row in page.items], "has_more": page.has_more, "next": page.next}


def sliced(rows: list[dict[str, Any]], after: str | None, limit: int) -> dict[str, Any]:
    """A page of a list that is short enough to be read whole, such as one run's looks; the cursor is a row's ``id``."""
    start = 0
    if after is not None:
        places = [index for index, row in enumerate(rows) if row["id"] == after]
        if not places:
            hint = "use the `next` of the page before, or begin again without `after`"
            raise InvalidRequest("no row of this list has this cursor", param="after", code="bad_cursor", hint=hint)
        start = places[0] + 1
    data = rows[start : start + limit]
    more = start + limit < len(rows)
    return {"data": data, "has_more": more, "next": data[-1]["id"] if more else None}
