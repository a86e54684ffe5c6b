"""Merkle roots and inclusion proofs."""

import hashlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.prespec.merkle import inclusion_proof, item_salt, items_root, leaf_hash, merkle_root, verify_inclusion

# No deadline: how long an example takes says nothing on a busy machine.
STEADY = settings(deadline=None, max_examples=50)


def h(data):
    return hashlib.sha256(data).digest()


def leaves_of(count):
    return [h(bytes([k])) for k in range(count)]


def test_the_tree_of_five_leaves_by_hand():
    """RFC 9162: the left subtree holds the largest power of two below n."""
    a, b, c, d, e = leaves_of(5)
    left = h(b"\x01" + h(b"\x01" + a + b) + h(b"\x01" + c + d))
    assert merkle_root([a, b, c, d, e]) == h(b"\x01" + left + e)
    assert merkle_root([]) == h(b"")


def test_a_leaf_holds_salt_and_canonical_item():
    assert leaf_hash({"id": "a", "n": 1}, b"salt") == h(b'\x00salt{"id":"a","n":1}')


@STEADY
@given(st.integers(1, 20), st.data())
def test_each_leaf_is_proved_and_no_other_is(size, data):
    leaves = leaves_of(size)
    index = data.draw(st.integers(0, size - 1))
    proof = inclusion_proof(leaves, index)
    root = merkle_root(leaves)
    assert verify_inclusion(root, leaves[index], index, size, proof)
    assert not verify_inclusion(root, h(b"other"), index, size, proof)
    assert not verify_inclusion(root, leaves[index], index, size, [*proof, h(b"more")])
    if size > 1:
        assert not verify_inclusion(root, leaves[index], (index + 1) % size, size, proof)
        assert not verify_inclusion(root, leaves[index], index, size, proof[:-1])


def test_the_root_depends_on_items_and_secret_but_not_on_order():
    items = [{"id": f"i{k}", "prompt": f"p{k}", "answer": str(k)} for k in range(7)]
    root = items_root(items, b"secret")
    assert root == items_root(items[::-1], b"secret")
    assert root != items_root(items, b"other")
    assert root != items_root([{**items[0], "answer": "9"}, *items[1:]], b"secret")
    assert item_salt(b"secret", "i0") != item_salt(b"secret", "i1")


def test_items_with_one_id_are_refused():
    with pytest.raises(ValueError, match="distinct"):
        items_root([{"id": "a"}, {"id": "a"}], b"s")
