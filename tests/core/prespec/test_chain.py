"""The log's chain and what an altered export shows."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.prespec import chain
from core.prespec.chain import ENTRY_TYPES, GENESIS, next_entry, verify_log
from core.store import chain as written

# No deadline: how long an example takes says nothing on a busy machine.
STEADY = settings(deadline=None, max_examples=50)


def log(count=5):
    entries = []
    for k in range(count):
        kind = ENTRY_TYPES[k % len(ENTRY_TYPES)]
        entries.append(next_entry(entries[-1] if entries else None, kind, {"k": k, "loss": 0.5}, 1_700_000_000.25 + k))
    return [json.loads(json.dumps(entry.export())) for entry in entries]


def test_an_untouched_log_verifies_from_its_export():
    entries = log()
    verified = verify_log(entries, expected_head=entries[2]["hash"])
    assert verified.ok
    assert (verified.entries, verified.head) == (5, entries[-1]["hash"])
    assert entries[0]["previous_hash"] == GENESIS
    assert entries[0]["payload"] == {"k": 0, "loss": "0.5"}


def test_an_empty_log_verifies():
    assert verify_log([]).ok


@STEADY
@given(
    st.integers(0, 4),
    st.sampled_from(
        [("payload", {"k": 99}), ("type", "report"), ("claimed_at", 1.0), ("previous_hash", "f" * 64), ("hash", "f" * 64),
         ("payload_hash", "f" * 64), ("seq", 9), ("type", "gossip"), ("payload", {"x": 0.5}), ("claimed_at", "noon")]
    ),
)  # fmt: skip
def test_any_change_is_found_at_the_first_broken_entry(position, change):
    entries = log()
    field, value = change
    if entries[position][field] == value:
        return
    entries[position][field] = value
    verified = verify_log(entries)
    assert not verified.ok
    assert verified.broken_seq == position + 1
    assert verified.reason


def test_a_removed_or_moved_entry_is_found():
    entries = log()
    assert verify_log(entries[:1] + entries[2:]).broken_seq == 2
    assert verify_log([entries[1], entries[0], *entries[2:]]).broken_seq == 1
    del entries[3]["payload_hash"]
    assert "payload_hash" in verify_log(entries).reason


def test_a_rewritten_or_cut_log_misses_the_published_head():
    entries = log()
    assert not verify_log(entries[:3], expected_head=entries[4]["hash"]).ok
    rewritten = [next_entry(None, "report", {"k": 1}, 5.0).export()]
    assert verify_log(rewritten).ok
    assert "rewritten or cut" in verify_log(rewritten, expected_head=entries[0]["hash"]).reason


def test_an_unknown_type_is_refused():
    with pytest.raises(ValueError, match="prespec_frozen"):
        next_entry(None, "gossip", {}, 1.0)


@STEADY
@given(
    st.dictionaries(st.text(max_size=3), st.text(max_size=4) | st.integers(0, 9) | st.floats(0, 1), max_size=3),
    st.integers(1, 10**6),
    st.floats(1e9, 4e9),
)
def test_what_the_store_writes_verifies_here_although_the_two_share_no_code(payload, seq, claimed_at):
    """Keys that collide under NFC are refused here, so they are left out."""
    stored = written.normal(payload)
    if len(stored) != len(payload):
        return
    inner = written.payload_hash(stored)
    assert inner == chain.payload_hash(json.loads(json.dumps(stored)))
    outer = written.entry_hash(seq=seq, type="report", payload_hash=inner, previous_hash=GENESIS, claimed_at=claimed_at)
    assert outer == chain.entry_hash(seq, "report", inner, GENESIS, claimed_at)
