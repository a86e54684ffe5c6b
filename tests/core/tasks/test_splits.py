from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.tasks.items import Item, ItemError, ItemSet, normalised_prompt
from core.tasks.sources import generate_items
from core.tasks.splits import PromptSampler, check_overlap, split_holdout


def items_of(prompts: list[str], *, generated: bool = False) -> ItemSet:
    items = tuple(Item(f"i{index}", prompt, "1", "math") for index, prompt in enumerate(prompts))
    return ItemSet(items, "made", "math", generated=generated)


def prompts_of(items) -> set[str]:
    return {normalised_prompt(item.prompt) for item in items}


def test_few_distinct_generated_prompts_are_held_out_once_and_never_trained_on():
    options = {"size": 600, "min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}
    items = generate_items("chain_sum", options, seed=0)
    distinct = len(prompts_of(items))
    assert distinct <= 200
    split = split_holdout(items, 80, seed=0)
    assert len(split.heldout) == len(prompts_of(split.heldout)) == 80
    assert len(split.train) == len(prompts_of(split.train)) == distinct - 80
    assert not prompts_of(split.train) & prompts_of(split.heldout)
    removed = split.removed_heldout_copies + split.removed_repeats
    assert removed == 600 - distinct
    copies = Counter(normalised_prompt(item.prompt) for item in items)
    assert split.removed_heldout_copies == sum(copies[prompt] - 1 for prompt in prompts_of(split.heldout))
    check_overlap(split.train.items, split.heldout.items)


@settings(max_examples=50)
@given(
    st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=30), st.integers(0, 10), st.integers(0, 5), st.booleans()
)
def test_a_split_keeps_prompts_apart_and_accounts_for_every_item(prompts, holdout, seed, generated):
    items = items_of(prompts, generated=generated)
    try:
        split = split_holdout(items, holdout, seed)
    except ItemError:
        distinct = set(prompts) if generated else {one for one in prompts if prompts.count(one) == 1}
        assert holdout > len(distinct) or (holdout == len(set(prompts)))
        return
    assert len(split.heldout) == holdout
    assert not prompts_of(split.train) & prompts_of(split.heldout)
    assert len(split.train) + holdout + split.removed_heldout_copies + split.removed_repeats == len(items)
    assert split == split_holdout(items, holdout, seed)


def test_file_items_with_repeated_prompts_are_never_held_out():
    items = items_of(["same", "same", "x", "y", "z"])
    for seed in range(20):
        assert "same" not in prompts_of(split_holdout(items, 2, seed).heldout)
    with pytest.raises(ItemError, match="3 distinct prompts"):
        split_holdout(items, 4, 0)


def test_a_holdout_of_everything_or_less_than_nothing_is_refused():
    with pytest.raises(ItemError, match="nothing is left to train on"):
        split_holdout(items_of(["a", "b"]), 2, 0)
    with pytest.raises(ItemError, match=r"data\.holdout is -1"):
        split_holdout(items_of(["a", "b"]), -1, 0)


def test_the_draw_depends_on_the_seed():
    items = items_of([f"p{index}" for index in range(100)])
    assert split_holdout(items, 10, 1).heldout != split_holdout(items, 10, 2).heldout


@settings(max_examples=80)
@given(st.integers(1, 23), st.integers(1, 23), st.integers(0, 3))
def test_each_prompt_once_per_epoch_and_never_twice_in_a_step(n_prompts, per_step, seed):
    per_step = min(per_step, n_prompts)
    sampler = PromptSampler(n_prompts, seed)
    steps = [sampler.prompts_for_step(step, per_step) for step in range(1, 4 * n_prompts + 1)]
    assert all(len(set(step)) == per_step for step in steps)
    flat = [index for step in steps for index in step]
    for start in range(0, len(flat) - n_prompts + 1, n_prompts):
        assert sorted(flat[start : start + n_prompts]) == list(range(n_prompts))


def test_nine_prompts_three_per_step_cover_each_epoch_in_another_order():
    sampler = PromptSampler(9, 7)
    epochs = [
        [index for step in range(first, first + 3) for index in sampler.prompts_for_step(step, 3)] for first in (1, 4)
    ]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(9))
    assert epochs[0] != epochs[1]


def test_a_step_is_a_pure_function_of_its_number():
    walked, jumped = PromptSampler(10, 3), PromptSampler(10, 3)
    steps = {step: walked.prompts_for_step(step, 4) for step in range(1, 30)}
    for step in (29, 3, 17, 1):
        assert jumped.prompts_for_step(step, 4) == steps[step]
    assert PromptSampler(10, 4).prompts_for_step(1, 10) != walked.prompts_for_step(1, 10)


def test_impossible_steps_are_refused():
    with pytest.raises(ItemError, match="prompts_per_step is 4, but there are 3"):
        PromptSampler(3, 0).prompts_for_step(1, 4)
    with pytest.raises(ValueError, match="counted from 1"):
        PromptSampler(3, 0).prompts_for_step(0, 1)
    with pytest.raises(ItemError, match="no training prompts"):
        PromptSampler(0, 0)


def words(start: int, count: int) -> str:
    return " ".join(f"w{index}" for index in range(start, start + count))


def test_an_equal_prompt_is_refused_by_name():
    train, held = items_of(["x", "What  is IT?"]), items_of(["what is it?"])
    with pytest.raises(ItemError, match="i1 = i0"):
        check_overlap(train.items, held.items)


def test_a_shared_run_of_twenty_words_is_a_warning_and_nineteen_are_not():
    train = items_of([f"alpha {words(0, 20)} beta", f"gamma {words(100, 19)} delta"])
    held = items_of([f"epsilon {words(0, 20)} zeta", f"eta {words(100, 19)} theta"])
    overlap = check_overlap(train.items, held.items)
    assert overlap.pairs == (("i0", "i0"),)
    assert overlap.warning is not None
    assert "i0 ~ i0" in overlap.warning


def test_wording_that_many_items_share_is_ignored():
    frame = words(0, 25)
    train = items_of([f"{frame} {index}" for index in range(50)])
    held = items_of([f"{frame} h{index}" for index in range(10)])
    assert check_overlap(train.items, held.items).warning is None
    rare = items_of([*[f"only {index}" for index in range(60)], f"{words(500, 20)} a"])
    assert len(check_overlap(rare.items, items_of([f"{words(500, 20)} b"]).items).pairs) == 1
