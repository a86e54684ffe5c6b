"""Micro-batch plans: every sequence exactly once, within the budget, tails included."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.rl import packing
from core.rl.packing import plan_micro_batches

lengths_lists = st.lists(st.integers(1, 50), max_size=40)


@given(lengths_lists, st.integers(1, 200))
def test_every_sequence_is_in_exactly_one_micro_batch_within_the_budget(lengths, max_tokens):
    plan = plan_micro_batches(lengths, max_tokens)
    assert sorted(index for part in plan for index in part) == list(range(len(lengths)))
    for part in plan:
        assert part
        cost = len(part) * max(lengths[i] for i in part)
        assert cost <= max_tokens or len(part) == 1


@given(lengths_lists, st.integers(1, 200))
def test_like_lengths_go_together_and_the_longest_come_first(lengths, max_tokens):
    in_order = [lengths[i] for part in plan_micro_batches(lengths, max_tokens) for i in part]
    assert in_order == sorted(lengths, reverse=True)


def cost(parts, lengths):
    padded = [len(part) * max(lengths[i] for i in part) for part in parts]
    return sum(max(size, packing.LAUNCH_BOUND_TOKENS) for size in padded), sum(padded), len(padded)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=9), st.integers(1, 200), st.sampled_from([1, 30, 6000]))
def test_no_other_cut_of_the_order_is_cheaper(lengths, max_tokens, launch_bound):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "LAUNCH_BOUND_TOKENS", launch_bound)
        plan = plan_micro_batches(lengths, max_tokens)
        order = [index for part in plan for index in part]
        for count in range(len(order)):
            for cuts in itertools.combinations(range(1, len(order)), count):
                parts = [order[a:b] for a, b in itertools.pairwise([0, *cuts, len(order)])]
                if all(len(p) == 1 or len(p) * lengths[p[0]] <= max_tokens for p in parts):
                    assert cost(plan, lengths) <= cost(parts, lengths)


@given(lengths_lists, st.integers(1, 200))
def test_no_two_neighbours_could_have_been_one(lengths, max_tokens):
    for left, right in itertools.pairwise(plan_micro_batches(lengths, max_tokens)):
        assert (len(left) + len(right)) * lengths[left[0]] > max_tokens, (left, right)


def test_large_sequences_are_cut_where_padding_would_cost_more_than_another_micro_batch():
    assert plan_micro_batches([9000, 9000, 6000, 6000], 40_000) == [[0, 1], [2, 3]]
    assert plan_micro_batches([3000, 3000, 2500], 36_000) == [[0, 1, 2]]


def test_ten_equal_samples_at_four_per_micro_batch_keep_their_last_two():
    assert plan_micro_batches([5] * 10, 20) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_a_sequence_over_the_budget_travels_alone():
    assert plan_micro_batches([3, 100, 4], 10) == [[1], [2, 0]]


def test_no_sequences_give_no_micro_batches():
    assert plan_micro_batches([], 10) == []


def test_impossible_numbers_are_refused_by_name():
    with pytest.raises(ValueError, match="max_tokens must be at least 1"):
        plan_micro_batches([1], 0)
    with pytest.raises(ValueError, match=r"lengths\[1\] must be at least 1"):
        plan_micro_batches([1, 0], 5)
