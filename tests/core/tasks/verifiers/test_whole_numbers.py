"""The short cut for whole numbers says what the whole grader says, or nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.tasks.items import Item
from core.tasks.verifiers import math
from core.tasks.verifiers.whole_numbers import judged

NUMBERS = st.one_of(st.integers(-(10**29), 10**29).map(str), st.from_regex(r"-?0{0,3}[0-9]{1,6}", fullmatch=True))


@given(NUMBERS, NUMBERS, st.sampled_from(["\\boxed{%s}", "$\\boxed{ %s }$.", "\\boxed{1}</think>\\boxed{%s} done"]))
def test_it_agrees_with_the_grader(gold, answer, form):
    item = Item("i", "p", gold, "math")
    for said in (gold, answer):
        assert judged(item, form % said) == math.grade(item, form % said)


@pytest.mark.parametrize(
    ("gold", "text"),
    [
        ("5", "the answer is 5"),
        ("5", r"\boxed{5.0}"),
        ("5", r"\boxed{5 or 6}"),
        ("5", r"\boxed{5}, no: \boxed{6"),
        ("5", "\\boxed{\N{ARABIC-INDIC DIGIT FIVE}}"),
        ("1/2", r"\boxed{1}"),
        ("5", r"\boxed{" + "9" * 31 + "}"),
        ("5", ""),
    ],
)
def test_everything_else_is_left_to_the_grader(gold, text):
    assert judged(Item("i", "p", gold, "math"), text) is None
