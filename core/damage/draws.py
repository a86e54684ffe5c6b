"""Which items are asked at a look: a uniform draw that nobody could know before the checkpoint existed.

The m items with the smallest HMAC-SHA256(key, "t | checkpoint sha256 | item id") are drawn. The key comes from the hash of
the frozen prespecification (``core.prespec.document.draw_key``). Nothing here keeps state or uses a random generator.
"""

import hashlib
import hmac
from collections.abc import Iterable

from core.damage.observations import RuleError

PANEL = "panel"


def draw(key: bytes, t: int, checkpoint_sha256: str, item_ids: Iterable[str], m: int) -> list[str]:
    """Return the ``m`` items drawn at look ``t`` (1-based), smallest code first.

    The result depends on the set of ids, not on their order. Errors: :class:`RuleError` for an empty key, duplicate ids,
    or m outside 1..N.
    """
    ids = list(item_ids)
    if not key:
        raise RuleError("key", "the draw key is empty.", "Derive it from the prespecification's hash.")
    if len(set(ids)) != len(ids):
        raise RuleError("item_ids", "an item id occurs twice in the pool.")
    if not 1 <= m <= len(ids):
        raise RuleError("looks.m", f"cannot draw {m} of {len(ids)} items.", f"m must lie in 1..{len(ids)}.")
    prefix = f"{t} | {checkpoint_sha256} | "
    codes = sorted((hmac.digest(key, (prefix + item).encode(), hashlib.sha256), item) for item in ids)
    return [item for _, item in codes[:m]]


def panel(key: bytes, item_ids: Iterable[str], m: int) -> list[str]:
    """Return the fixed panel of ``m`` items: the draw at t = 0, before any checkpoint exists."""
    return draw(key, 0, PANEL, item_ids, m)
