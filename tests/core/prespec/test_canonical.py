"""Canonical bytes."""

import hashlib
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.prespec.canonical import CanonicalError, canonical_bytes, decimals_as_strings, parse_document, tagged_hash

# No deadline: how long an example takes says nothing on a busy machine.
STEADY = settings(deadline=None, max_examples=50)

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abcdé", max_size=4), inner, max_size=4),
    max_leaves=12,
)


def test_the_bytes_by_hand():
    assert (
        canonical_bytes({"b": [1, True, None], "a": "x\n", "€": {}}) == '{"a":"x\\n","b":[1,true,null],"€":{}}'.encode()
    )


def test_composed_and_decomposed_text_are_one_document():
    assert canonical_bytes({"n": "é"}) == canonical_bytes({"n": "e\u0301"}) == '{"n":"é"}'.encode()


@STEADY
@given(DOCUMENTS)
def test_canonical_bytes_parse_back_to_the_same_bytes(document):
    data = canonical_bytes(document)
    assert canonical_bytes(parse_document(data)) == data


@STEADY
@given(st.dictionaries(st.text("abcdef", max_size=3), st.integers(0, 9)), st.randoms(use_true_random=False))
def test_key_order_does_not_matter(document, random):
    keys = list(document)
    random.shuffle(keys)
    assert canonical_bytes({key: document[key] for key in keys}) == canonical_bytes(document)


@pytest.mark.parametrize(
    ("text", "param"),
    [
        ('{"a": 1, "a": 2}', "a"),
        ('{"x": {"b": 1, "b": 1}}', "b"),
        ('{"a": 0.5}', ""),
        ('{"a": 1e3}', ""),
        ('{"a": NaN}', ""),
        ("{", ""),
        (b"\xff", ""),
    ],
)
def test_bad_text_is_refused(text, param):
    with pytest.raises(CanonicalError) as caught:
        parse_document(text)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("document", "param"),
    [
        ({"sizes": {"items": [1, 0.5]}}, "sizes.items[1]"),
        ({"a": 2**53}, "a"),
        ({"é": 1, "e\u0301": 2}, "e\u0301"),
        ({"a": "\ud800"}, "a"),
        ({1: "a"}, ""),
        ({"a": {1, 2}}, "a"),
    ],
)
def test_values_without_a_canonical_form_are_refused_by_path(document, param):
    with pytest.raises(CanonicalError) as caught:
        canonical_bytes(document)
    assert caught.value.param == param


def test_decimals_become_strings_that_read_back_the_same():
    assert decimals_as_strings({"a": [0.05, 1e-06, 2], "b": True}) == {"a": ["0.05", "1e-06", 2], "b": True}
    with pytest.raises(CanonicalError):
        decimals_as_strings([float("inf")])


@STEADY
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_no_decimal_loses_a_digit(value):
    assert float(decimals_as_strings(value)) == value


def test_the_tag_is_part_of_the_hash():
    assert tagged_hash("t/1", b"x") == hashlib.sha256(b"t/1\nx").hexdigest()
    assert tagged_hash("t/1", b"x") != tagged_hash("t/2", b"x")
    assert json.loads(canonical_bytes({"a": 1})) == {"a": 1}
