"""Merging and comparing recipes."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.services.merging import merge_patch, recipe_diff

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text("ab", max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=2), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.text("ab", max_size=2), JSON, max_size=3)


@pytest.mark.parametrize(
    ("target", "patch", "result"),
    [
        # the test cases of RFC 7396, appendix A
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        (["a", "b"], ["c", "d"], ["c", "d"]),
        ({"a": "b"}, ["c"], ["c"]),
        ({"a": "foo"}, None, None),
        ({"a": "foo"}, "bar", "bar"),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_merge_follows_the_standards_examples(target: Any, patch: Any, result: Any) -> None:
    assert merge_patch(target, patch) == result


@given(OBJECTS, OBJECTS)
def test_merging_twice_changes_nothing_more(target: Any, patch: Any) -> None:
    once = merge_patch(target, patch)
    assert merge_patch(once, patch) == once


@given(JSON)
def test_a_value_does_not_differ_from_itself(value: Any) -> None:
    assert recipe_diff(value, value) == {}


def test_diff_names_the_dotted_path_and_both_values() -> None:
    before = {"looks": {"every": 4, "m": 16}, "seed": 1, "suites": ["a"]}
    after = {"looks": {"every": 4, "m": 8}, "seed": True, "suites": ["a", "b"]}
    assert recipe_diff(before, after) == {
        "looks.m": {"from": 16, "to": 8},
        "seed": {"from": 1, "to": True},
        "suites": {"from": ["a"], "to": ["a", "b"]},
    }
