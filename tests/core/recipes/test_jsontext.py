"""Strict JSON: what Python's reader lets pass is refused with its place."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.recipes import RecipeError
from core.recipes.jsontext import MAX_DEPTH, MAX_STRING, read_object


def places(raw: Any) -> list[str]:
    with pytest.raises(RecipeError) as caught:
        read_object(raw)
    return [problem.param for problem in caught.value.problems]


def test_duplicate_keys_are_found_at_every_depth() -> None:
    text = '{"a": 1, "a": 1, "b": {"c": [{"d": 1, "e": 2, "d": 3}]}}'
    assert places(text) == ["a", "b.c.0.d"]


def test_a_key_spelt_with_an_escape_is_the_same_key() -> None:
    assert places('{"a": 1, "\\u0061": 2}') == ["a"]


@pytest.mark.parametrize("literal", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999"])
def test_numbers_that_are_not_finite_are_refused_where_they_stand(literal: str) -> None:
    assert places(f'{{"x": [1, {{"y": {literal}}}]}}') == ["x.1.y"]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_numbers_that_are_not_finite_are_refused_in_plain_objects_too(value: float) -> None:
    assert places({"x": {"y": value}}) == ["x.y"]


@pytest.mark.parametrize("digits", ["9007199254740992", "-9007199254740992", "1" * 5000])
def test_integers_that_json_does_not_hold_exactly_are_refused(digits: str) -> None:
    assert places(f'{{"seed": {digits}}}') == ["seed"]


def test_the_largest_exact_integer_is_read() -> None:
    assert read_object('{"seed": 9007199254740991}') == {"seed": 2**53 - 1}


def test_nesting_is_bounded() -> None:
    deep = "[" * (MAX_DEPTH - 1) + "1" + "]" * (MAX_DEPTH - 1)
    assert read_object(f'{{"x": {deep}}}')
    assert places('{"x": ' + "[" * MAX_DEPTH + "1" + "]" * MAX_DEPTH + "}")[0].startswith("x.0")


@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_absurd_nesting_is_refused_and_does_not_crash(opening: str) -> None:
    assert places(opening * 100_000) == [""]


def test_absurd_nesting_of_plain_objects_is_refused() -> None:
    deep: dict[str, Any] = {}
    for _ in range(5000):
        deep = {"a": deep}
    assert places(deep) == [".".join("a" * MAX_DEPTH)]


def test_long_texts_and_keys_are_refused() -> None:
    assert read_object({"x": "a" * MAX_STRING})
    assert places({"x": "a" * (MAX_STRING + 1)}) == ["x"]
    assert places({"k" * 201: 1}) == [""]


def test_a_recipe_of_megabytes_is_refused_before_it_is_read() -> None:
    assert places('{"x": "' + "a" * (1 << 20) + '"}') == [""]


@pytest.mark.parametrize("text", ['{"x": "\\u0000"}', '{"x": "\\ud800"}', '{"\\ud800": 1}'])
def test_characters_that_cannot_be_stored_are_refused(text: str) -> None:
    assert places(text) in (["x"], [""])


@pytest.mark.parametrize(
    "text", ["", "[]", "1", "null", '"train"', "{", '{"a": 1,}', "{'a': 1}", '{"a": 1} x', b"\xff\xfe{}"]
)
def test_what_is_not_one_json_object_is_refused(text: str | bytes) -> None:
    assert places(text) == [""]


def test_values_that_json_does_not_have_are_refused_in_plain_objects() -> None:
    assert places({"a": {1, 2}, "b": b"x", "c": {1: 2}}) == ["a", "b", "c"]


scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=20)
)
keys = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=10)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3), max_leaves=10
)


@given(st.dictionaries(keys, values, max_size=5))
def test_good_json_is_read_as_pythons_own_reader_reads_it(obj: dict[str, Any]) -> None:
    text = json.dumps(obj)
    assert read_object(text) == json.loads(text)
    assert read_object(text.encode()) == read_object(obj) == json.loads(text)
