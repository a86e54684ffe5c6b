"""Validation items are training items that are trained on no more."""

import pytest

from core.tasks.items import Item, ItemError, ItemSet
from core.tasks.validation import split_validation


def items(prompts: list[str]) -> ItemSet:
    made = tuple(Item(f"i{place}", prompt, "1", "math") for place, prompt in enumerate(prompts))
    return ItemSet(made, "mine", "math")


def test_the_two_parts_are_disjoint_and_whole_and_the_same_every_time() -> None:
    whole = items([f"question {place}" for place in range(30)])
    kept, taken = split_validation(whole, 10, 3)
    assert (len(kept), len(taken)) == (20, 10)
    assert {item.id for item in kept} | {item.id for item in taken} == {item.id for item in whole}
    assert [item.id for item in split_validation(whole, 10, 3)[1]] == [item.id for item in taken]
    assert [item.id for item in split_validation(whole, 10, 4)[1]] != [item.id for item in taken]


def test_a_prompt_that_occurs_twice_is_never_taken_since_its_copy_would_be_trained_on() -> None:
    whole = items(["same", "same", *[f"question {place}" for place in range(6)]])
    _, taken = split_validation(whole, 6, 0)
    assert "same" not in {item.prompt for item in taken}
    with pytest.raises(ItemError, match="6 training items with prompts of their own"):
        split_validation(whole, 7, 0)


def test_something_must_be_left_to_train_on() -> None:
    with pytest.raises(ItemError, match=r"regrounding\.validation is 5"):
        split_validation(items([f"q{place}" for place in range(5)]), 5, 0)
