"""Pass rates of start models, item by item, under the hash of everything that they depend on. Nothing is measured here."""

from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.store.database import insert_for, now
from core.store.fencing import Fence, require
from core.store.grading_models import PassRate

_AT_ONCE = 500


def known(session: Session, key: str, item_hashes: Iterable[str]) -> dict[str, tuple[int, int]]:
    """Return (right, judged) by item hash, for the items that were measured under ``key``."""
    wanted = list(item_hashes)
    found: dict[str, tuple[int, int]] = {}
    for start in range(0, len(wanted), _AT_ONCE):
        query = select(PassRate.item_sha256, PassRate.right, PassRate.judged).where(
            PassRate.key == key, PassRate.item_sha256.in_(wanted[start : start + _AT_ONCE])
        )
        found |= {item: (right, judged) for item, right, judged in session.execute(query)}
    return found


def put(
    session: Session, fence: Fence, key: str, settings: Mapping[str, Any], rates: Mapping[str, tuple[int, int]]
) -> None:
    """Store (right, judged) by item hash; what is there already stays as it is."""
    require(session, fence)
    at = now(session)
    rows = [
        {
            "key": key,
            "item_sha256": item,
            "right": right,
            "judged": judged,
            "settings": dict(settings),
            "created_at": at,
        }
        for item, (right, judged) in rates.items()
    ]
    if rows:
        session.execute(insert_for(session)(PassRate).on_conflict_do_nothing(), rows)
