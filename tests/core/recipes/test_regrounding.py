"""The re-grounding block: where its cycles end, what adaptive fills in, and what contradicts itself."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.recipes import features_missing, parse_recipe, recipe_hash, resolved
from core.recipes.regrounding import Regrounding


def block(train: dict[str, Any], **fields: Any) -> Regrounding:
    recipe = parse_recipe({**train, "device": {"kind": "cpu"}, "regrounding": fields})
    assert features_missing(recipe) == []
    assert recipe_hash(parse_recipe(resolved(recipe))) == recipe_hash(recipe)
    return recipe.regrounding


def test_cycles_end_every_m_steps_after_the_first() -> None:
    found = Regrounding(m=20, n=20, after=60)
    assert [step for step in range(1, 141) if found.jumps_after(step)] == [80, 100, 120, 140]


@given(m=st.integers(1, 50), after=st.integers(0, 100), begins_at=st.integers(0, 100), step=st.integers(0, 400))
def test_between_two_jumps_lie_m_steps_counted_from_where_the_run_begins(m, after, begins_at, step) -> None:
    found = Regrounding(m=m, n=1, after=after)
    origin = max(after, begins_at)
    assert found.jumps_after(step, begins_at) == (step in range(origin + m, 10_000, m))


def test_adaptive_fills_in_candidates_around_n_and_validation_items(train: dict[str, Any]) -> None:
    found = block(train, m=20, n=20, adaptive=True)
    assert (found.candidates, found.validation) == ((10, 20, 40), 200)
    fixed = block(train, m=20, n=20)
    assert (fixed.candidates, fixed.validation) == ((), None)


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"m": 20, "n": 20, "candidates": [5]}, "regrounding.candidates"),
        ({"m": 20, "n": 20, "validation": 50}, "regrounding.validation"),
        ({"m": 20, "n": 0, "adaptive": True}, "regrounding.candidates"),
        ({"m": 20, "n": 5, "adaptive": True, "candidates": [5, 5]}, "regrounding.candidates"),
        ({"m": 20, "n": 5, "adaptive": True, "validation": None}, "regrounding.validation"),
    ],
)
def test_contradictions_are_named(fields: dict[str, Any], place: str, train: dict[str, Any], problems: Any) -> None:
    assert list(problems({**train, "regrounding": fields})) == [place]


def test_adapters_are_refused_with_their_reason(train: dict[str, Any], problems: Any) -> None:
    found = problems({**train, "regrounding": {"m": 20, "n": 20}, "lora": {"r": 16}})
    assert list(found) == ["regrounding"]
    assert "product" in found["regrounding"].message


def test_validation_items_leave_the_training_data(train: dict[str, Any], problems: Any) -> None:
    raw = {**train, "data": {"dataset": "gsm8k", "holdout": 7400}}
    assert parse_recipe(raw)
    adaptive = {"m": 20, "n": 20, "adaptive": True, "validation": 70}
    assert list(problems({**raw, "regrounding": adaptive})) == ["data.holdout"]
