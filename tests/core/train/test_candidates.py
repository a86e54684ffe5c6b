"""Decisions on scores: the best candidate that the confirming draw does not show damaged, else to stay."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.evals.stored import Scores
from core.tasks.items import Item
from core.train.candidates import ALPHA, choose, halves


def scores(right: int, total: int = 40) -> Scores:
    return {f"i{place}": float(place < right) for place in range(total)}


def asker(tables: dict[tuple[int, str], Scores | None], asked: list[tuple[int, str]]):
    def ask(n: int, draw: str) -> Scores | None:
        asked.append((n, draw))
        return tables[n, draw]

    return ask


def test_the_best_candidate_is_taken_when_its_confirming_draw_does_not_show_damage() -> None:
    asked: list[tuple[int, str]] = []
    tables = {(n, "candidate"): scores(right) for n, right in ((0, 10), (10, 14), (20, 18), (40, 12))}
    tables |= {(20, "confirm"): scores(17), (0, "confirm"): scores(20)}
    choice = choose([10, 20, 40], asker(tables, asked))
    assert choice.n == 20
    assert [(one.n, one.lost, one.gained, one.damaged) for one in choice.confirmed] == [(20, 3, 0, False)]
    assert choice.confirmed[0].p_lost == 0.125
    assert asked == [
        (0, "candidate"),
        (10, "candidate"),
        (20, "candidate"),
        (40, "candidate"),
        (20, "confirm"),
        (0, "confirm"),
    ]
    assert (choice.accuracy(0), choice.accuracy(20)) == (0.25, 0.45)


def test_a_damaged_candidate_gives_way_to_the_next_and_in_the_end_to_staying() -> None:
    tables = {(n, "candidate"): scores(right) for n, right in ((0, 10), (10, 14), (20, 18), (40, 12))}
    tables |= {(20, "confirm"): scores(10), (10, "confirm"): scores(19), (0, "confirm"): scores(20)}
    choice = choose([10, 20, 40], asker(tables, []))
    assert [(one.n, one.damaged) for one in choice.confirmed] == [(20, True), (10, False)]
    assert choice.n == 10
    tables[10, "confirm"] = tables[40, "confirm"] = scores(2)
    assert choose([10, 20, 40], asker(tables, [])).n == 0


def test_staying_is_best_where_no_candidate_does_better_and_needs_no_confirming() -> None:
    asked: list[tuple[int, str]] = []
    tables = {(n, "candidate"): scores(10) for n in (0, 10)}
    choice = choose([10], asker(tables, asked))
    assert (choice.n, choice.confirmed) == (0, ())
    assert asked == [(0, "candidate"), (10, "candidate")]


def test_equal_candidates_rank_by_the_smaller_jump() -> None:
    tables = {(n, "candidate"): scores(right) for n, right in ((0, 10), (40, 14), (20, 14))}
    tables |= {(20, "confirm"): scores(20), (0, "confirm"): scores(20)}
    assert choose([40, 20], asker(tables, [])).n == 20


def test_weights_without_finite_logits_are_never_taken() -> None:
    tables: dict[tuple[int, str], Scores | None] = {(0, "candidate"): scores(1), (9, "candidate"): None}
    choice = choose([9], asker(tables, []))
    assert choice.n == 0
    assert choice.accuracy(9) is None
    tables |= {(9, "candidate"): scores(30), (9, "confirm"): None, (0, "confirm"): scores(1)}
    assert choose([9], asker(tables, [])).n == 0


def test_items_that_could_not_be_judged_count_on_neither_side() -> None:
    after = scores(20) | {"i0": None, "i1": None}
    tables = {(0, "candidate"): scores(5), (9, "candidate"): after, (9, "confirm"): after, (0, "confirm"): scores(20)}
    choice = choose([9], asker(tables, []))
    assert choice.tried[1].judged == 38
    assert (choice.confirmed[0].lost, choice.confirmed[0].gained) == (0, 0)


@pytest.mark.parametrize(("lost", "damaged"), [(4, False), (5, True)])
def test_damage_is_an_exact_one_sided_test(lost: int, damaged: bool) -> None:
    """P(Bin(5, 1/2) >= 5) = 1/32 is below 0.05, P(Bin(4, 1/2) >= 4) = 1/16 is not."""
    tables = {(0, "candidate"): scores(1), (9, "candidate"): scores(2)}
    tables |= {(0, "confirm"): scores(20), (9, "confirm"): scores(20 - lost)}
    assert choose([9], asker(tables, [])).confirmed[0].damaged is damaged
    assert ALPHA == 0.05


@given(count=st.integers(2, 60), step=st.integers(1, 500), seed=st.integers(0, 5))
def test_halves_are_disjoint_whole_and_other_at_other_steps(count: int, step: int, seed: int) -> None:
    items = [Item(f"i{place}", str(place), str(place), "math") for place in range(count)]
    split = halves(items, seed, step)
    choosing, confirming = ({item.id for item in split[draw]} for draw in ("candidate", "confirm"))
    assert not choosing & confirming
    assert choosing | confirming == {item.id for item in items}
    assert 0 <= len(choosing) - len(confirming) <= 1
    assert split == halves(items, seed, step)
    if count > 20:
        assert split != halves(items, seed, step + 1)
