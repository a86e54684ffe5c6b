"""How an entry of the append-only log is hashed when it is written. Pure functions; no table, no clock.

The rules are stated here and, for whoever does not trust this table, a second time in `core.prespec.chain`, which verifies
exported logs and shares no code with this module: text in NFC, decimals as strings, RFC 8785, SHA-256 with a domain tag.
"""

import hashlib
import unicodedata
from typing import Any

import rfc8785

GENESIS = "0" * 64
"""The previous hash of the first entry."""

_PAYLOAD_TAG = b"driftline/log-payload/1\n"
_ENTRY_TAG = b"driftline/log-entry/1\n"


def normal(value: Any) -> Any:
    """Return ``value`` as it is stored and hashed: text in NFC, floats as the shortest decimal string that reads back."""
    match value:
        case str():
            return unicodedata.normalize("NFC", value)
        case float():
            return repr(value)
        case dict():
            return {normal(key): normal(item) for key, item in value.items()}
        case list() | tuple():
            return [normal(item) for item in value]
    return value


def payload_hash(payload: Any) -> str:
    """Return the hash of a payload that is `normal`; raises ValueError for what has no canonical form."""
    return hashlib.sha256(_PAYLOAD_TAG + rfc8785.dumps(payload)).hexdigest()


def entry_hash(*, seq: int, type: str, payload_hash: str, previous_hash: str, claimed_at: float) -> str:  # noqa: A002
    """Return the hash of an entry over its number, type, payload hash, previous hash and time (six decimals)."""
    entry: dict[str, Any] = {
        "seq": seq,
        "type": type,
        "payload_hash": payload_hash,
        "previous_hash": previous_hash,
        "claimed_at": format(claimed_at, ".6f"),
    }
    return hashlib.sha256(_ENTRY_TAG + rfc8785.dumps(entry)).hexdigest()
