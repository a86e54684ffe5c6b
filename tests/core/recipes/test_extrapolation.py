"""The extrapolation block of eval recipes: what it fills in, and what it refuses by name."""

from typing import Any

import pytest

from core.recipes import EvalRecipe, RecipeError, parse_recipe, resolved
from core.recipes.extrapolation import COMPANION_TEMPERATURES, line_reference

A, B = "run:aaaa/step-0", "run:aaaa/step-100"
SAMPLED = {"suite": "gsm8k", "n": 4}


def _recipe(extrapolation: Any, **changes: Any) -> dict[str, Any]:
    return {"kind": "eval", "suites": [SAMPLED], "extrapolation": extrapolation, **changes}


def _parsed(*args: Any, **changes: Any) -> EvalRecipe:
    recipe = parse_recipe(_recipe(*args, **changes))
    assert isinstance(recipe, EvalRecipe)
    return recipe


def _refused(raw: dict[str, Any]) -> dict[str, str]:
    with pytest.raises(RecipeError) as refused:
        parse_recipe(raw)
    return {problem.param: problem.message for problem in refused.value.problems}


def test_the_later_checkpoint_is_the_model() -> None:
    recipe = _parsed({"a": A, "b": B, "alpha": 1.5})
    assert (recipe.model, recipe.extrapolation and recipe.extrapolation.alpha) == (B, (1.5,))
    assert parse_recipe(resolved(recipe)) == recipe


@pytest.mark.parametrize(
    ("alpha", "suites", "expected"),
    [
        (1.5, [SAMPLED], ()),
        ([1, 1.5, 2], [SAMPLED], COMPANION_TEMPERATURES),
        ([1, 1.5, 2], ["gsm8k", SAMPLED], COMPANION_TEMPERATURES),
        ([1, 1.5, 2], ["gsm8k"], ()),
    ],
    ids=["one alpha", "a sweep", "a sweep, one suite sampled", "a greedy sweep"],
)
def test_a_sweep_over_alpha_carries_a_sweep_over_temperature(alpha: Any, suites: Any, expected: Any) -> None:
    line = _parsed({"a": A, "b": B, "alpha": alpha}, suites=suites).extrapolation
    assert line is not None
    assert line.temperatures == expected


def test_an_empty_list_of_temperatures_switches_the_companion_sweep_off() -> None:
    line = _parsed({"a": A, "b": B, "alpha": [1, 2], "temperatures": []}).extrapolation
    assert line is not None
    assert line.temperatures == ()


@pytest.mark.parametrize(
    ("block", "changes", "param"),
    [
        ({"a": A, "b": A, "alpha": 2}, {}, "extrapolation.a"),
        ({"a": A, "b": B, "alpha": 2}, {"model": A}, "model"),
        ({"a": A, "b": B, "alpha": [1, 1.0]}, {}, "extrapolation.alpha"),
        ({"a": A, "b": B, "alpha": []}, {}, "extrapolation.alpha"),
        ({"a": A, "b": B, "alpha": "2"}, {}, "extrapolation.alpha"),
        ({"a": A, "b": B, "alpha": True}, {}, "extrapolation.alpha"),
        ({"a": A, "b": B, "alpha": 1000}, {}, "extrapolation.alpha"),
        ({"a": A, "b": B}, {}, "extrapolation.alpha"),
        ({"a": A, "alpha": 2}, {}, "extrapolation.b"),
        ({"a": "run:zz", "b": B, "alpha": 2}, {}, "extrapolation.a"),
        ({"a": A, "b": B, "alpha": [1, 2], "temperatures": [0.5]}, {"suites": ["gsm8k"]}, "extrapolation.temperatures"),
        ({"a": A, "b": B, "alpha": [1, 2], "temperatures": [0]}, {}, "extrapolation.temperatures"),
        (None, {}, "model"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_the_name_of_its_field(
    block: Any, changes: dict[str, Any], param: str
) -> None:
    problems = _refused(_recipe(block, **changes))
    assert [name for name in problems if name == param or name.startswith(f"{param}.")], problems


@pytest.mark.parametrize(("alpha", "written"), [(1.0, "1"), (1.5, "1.5"), (-0.25, "-0.25"), (1.23456789, "1.23456789")])
def test_an_evaluation_on_the_line_has_a_name_that_says_where(alpha: float, written: str) -> None:
    assert line_reference(A, B, alpha) == f"lerp({A},{B},{written})"
