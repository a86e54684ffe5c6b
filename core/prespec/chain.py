"""The hash chain of the append-only log, and the verification of an exported log.

Each entry's hash covers its number, type, payload hash, time and the hash before it. The table that stores the log is not
trusted: verification recomputes everything. A chain alone cannot show that the whole log was rewritten; for that a head
must have been published or timestamped. Timestamp tokens are not verified here: without them the clock is the local one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from core.prespec.canonical import CanonicalError, canonical_bytes, decimals_as_strings, tagged_hash

GENESIS = "0" * 64
ENTRY_TYPES = (
    "prespec_frozen",
    "tsa_token",
    "run_started",
    "checkpoint",
    "eval_batch",
    "stop_decision",
    "report",
    "amendment",
    "withdrawal",
)
_PAYLOAD_TAG = "driftline/log-payload/1"
_ENTRY_TAG = "driftline/log-entry/1"


@dataclass(frozen=True)
class Entry:
    """One log entry. ``claimed_at`` is in unix seconds, as the database's clock claimed."""

    seq: int
    type: str
    payload: Mapping[str, Any]
    payload_hash: str
    previous_hash: str
    hash: str
    claimed_at: float

    def export(self) -> dict[str, Any]:
        """Return the entry as plain JSON."""
        return {**asdict(self), "payload": dict(self.payload)}


@dataclass(frozen=True)
class Verification:
    """The outcome of :func:`verify_log`. ``broken_seq`` and ``reason`` name the first broken entry."""

    ok: bool
    entries: int
    head: str
    broken_seq: int | None = None
    reason: str | None = None


def claimed_text(claimed_at: float) -> str:
    """Return the time as it is hashed: unix seconds with six decimals."""
    return format(claimed_at, ".6f")


def payload_hash(payload: Mapping[str, Any]) -> str:
    """Return the hash of a payload; its decimals must be strings already."""
    return tagged_hash(_PAYLOAD_TAG, canonical_bytes(payload))


def entry_hash(seq: int, entry_type: str, hash_of_payload: str, previous_hash: str, claimed_at: float) -> str:
    """Return the hash of an entry."""
    entry = {
        "seq": seq,
        "type": entry_type,
        "payload_hash": hash_of_payload,
        "previous_hash": previous_hash,
        "claimed_at": claimed_text(claimed_at),
    }
    return tagged_hash(_ENTRY_TAG, canonical_bytes(entry))


def next_entry(previous: Entry | None, entry_type: str, payload: Mapping[str, Any], claimed_at: float) -> Entry:
    """Return the entry that follows ``previous`` (None at the start). Floats in the payload become decimal strings."""
    if entry_type not in ENTRY_TYPES:
        raise ValueError(f"unknown entry type {entry_type!r}; allowed: {', '.join(ENTRY_TYPES)}")
    stored: dict[str, Any] = decimals_as_strings(payload)
    seq = previous.seq + 1 if previous else 1
    before = previous.hash if previous else GENESIS
    inner = payload_hash(stored)
    return Entry(
        seq, entry_type, stored, inner, before, entry_hash(seq, entry_type, inner, before, claimed_at), claimed_at
    )


def verify_log(entries: Sequence[Mapping[str, Any]], *, expected_head: str | None = None) -> Verification:
    """Recompute an exported log from its first entry. ``expected_head`` is a hash published or timestamped earlier.

    The head may lie anywhere in the log, since entries may have followed it.
    """
    before = GENESIS
    heads = {GENESIS}
    for position, entry in enumerate(entries, start=1):
        reason = _fault(entry, position, before)
        if reason:
            return Verification(False, len(entries), before, position, reason)
        before = str(entry["hash"])
        heads.add(before)
    if expected_head is not None and expected_head not in heads:
        return Verification(
            False, len(entries), before, None, "the published head is not in this log: it was rewritten or cut"
        )
    return Verification(True, len(entries), before)


def _fault(entry: Mapping[str, Any], position: int, before: str) -> str | None:
    missing = [field for field in Entry.__dataclass_fields__ if field not in entry]
    if missing:
        return f"the field {missing[0]} is missing"
    if entry["seq"] != position:
        return f"entry number {entry['seq']} stands at place {position}: one was removed, added or moved"
    try:
        inner = payload_hash(entry["payload"])
        outer = entry_hash(position, entry["type"], inner, before, float(entry["claimed_at"]))
    except (CanonicalError, TypeError, ValueError) as error:
        return f"it cannot be hashed: {error}"
    checks = (
        (entry["type"] in ENTRY_TYPES, f"unknown type {entry['type']!r}"),
        (entry["previous_hash"] == before, "its previous hash is not the hash of the entry before"),
        (entry["payload_hash"] == inner, "its payload does not match its payload hash"),
        (entry["hash"] == outer, "its number, type or time does not match its hash"),
    )
    return next((reason for good, reason in checks if not good), None)
