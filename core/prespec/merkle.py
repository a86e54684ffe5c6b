"""Merkle roots over salted items, so that a data set or an evaluation batch can be committed to without showing it.

The tree is that of RFC 9162, section 2.1 (SHA-256, a zero byte before leaves and a one byte before nodes). A leaf holds the
item's salt and its canonical bytes; the salt keeps short items from being guessed from a published proof.
"""

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from typing import Any

from core.prespec.canonical import canonical_bytes

_SALT_DOMAIN = b"driftline/item-salt/1\n"


def item_salt(secret: bytes, item_id: str) -> bytes:
    """Return the 32-byte salt of one item under the data set's secret."""
    return hmac.digest(secret, _SALT_DOMAIN + item_id.encode(), hashlib.sha256)


def leaf_hash(item: Mapping[str, Any], salt: bytes) -> bytes:
    """Return the hash of one salted item."""
    return hashlib.sha256(b"\x00" + salt + canonical_bytes(item)).digest()


def merkle_root(leaves: Sequence[bytes]) -> bytes:
    """Return the root over leaf hashes in the given order; SHA-256 of nothing for an empty list."""
    if not leaves:
        return hashlib.sha256(b"").digest()
    if len(leaves) == 1:
        return leaves[0]
    split = _split(len(leaves))
    return _node(merkle_root(leaves[:split]), merkle_root(leaves[split:]))


def inclusion_proof(leaves: Sequence[bytes], index: int) -> list[bytes]:
    """Return the siblings of leaf ``index`` from the bottom up."""
    if not 0 <= index < len(leaves):
        raise IndexError(f"leaf {index} of {len(leaves)}")
    if len(leaves) == 1:
        return []
    split = _split(len(leaves))
    if index < split:
        return [*inclusion_proof(leaves[:split], index), merkle_root(leaves[split:])]
    return [*inclusion_proof(leaves[split:], index - split), merkle_root(leaves[:split])]


def verify_inclusion(root: bytes, leaf: bytes, index: int, size: int, proof: Sequence[bytes]) -> bool:
    """Say whether ``leaf`` is number ``index`` of the ``size`` leaves under ``root``."""
    if not 0 <= index < size:
        return False
    return _root_from(leaf, index, size, list(proof)) == root


def items_root(items: Sequence[Mapping[str, Any]], secret: bytes, *, id_field: str = "id") -> str:
    """Return the hex root over items sorted by id, each salted; ids must be distinct."""
    ordered = sorted(items, key=lambda item: str(item[id_field]))
    if len({str(item[id_field]) for item in ordered}) != len(ordered):
        raise ValueError("item ids must be distinct")
    return merkle_root([leaf_hash(item, item_salt(secret, str(item[id_field]))) for item in ordered]).hex()


def _root_from(leaf: bytes, index: int, size: int, proof: list[bytes]) -> bytes | None:
    if size == 1:
        return leaf if not proof else None
    if not proof:
        return None
    *lower, sibling = proof
    split = _split(size)
    if index < split:
        left = _root_from(leaf, index, split, lower)
        return None if left is None else _node(left, sibling)
    right = _root_from(leaf, index - split, size - split, lower)
    return None if right is None else _node(sibling, right)


def _split(size: int) -> int:
    """Return the largest power of two below ``size``."""
    return 1 << ((size - 1).bit_length() - 1)


def _node(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\x01" + left + right).digest()
