"""Keyset pages: a page is found by the last row's key, so rows inserted meanwhile never shift or repeat others."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from core.store.errors import BadCursor

T = TypeVar("T")
MAX_LIMIT = 1000


@dataclass(frozen=True)
class Page(Generic[T]):
    """One page of a listing. ``next`` is the cursor for the following page, None on the last."""

    items: list[T]
    has_more: bool
    next: str | None


def page_of(rows: Sequence[T], limit: int, cursor: Callable[[T], str]) -> Page[T]:
    """Cut ``rows`` (asked for with limit + 1) down to a page."""
    items = list(rows[:limit])
    more = len(rows) > limit
    return Page(items=items, has_more=more, next=cursor(items[-1]) if more else None)


def checked_limit(limit: int) -> int:
    """Return ``limit``, or raise BadCursor when it is not in 1..1000."""
    if not 1 <= limit <= MAX_LIMIT:
        raise BadCursor(f"limit is {limit}; allowed are 1 to {MAX_LIMIT}")
    return limit


def int_cursor(after: str | int | None) -> int | None:
    """Read a cursor of one number."""
    return None if after is None else int_cursors(str(after), 1)[0]


def int_cursors(after: str, parts: int) -> list[int]:
    """Read a cursor of ``parts`` numbers joined by colons; raises :class:`BadCursor`."""
    pieces = after.split(":")
    if len(pieces) != parts or not all(piece.isascii() and piece.isdigit() and len(piece) <= 18 for piece in pieces):
        raise BadCursor(f"after is {after!r}, which is not a cursor of this listing; use the `next` of the page before")
    return [int(piece) for piece in pieces]
