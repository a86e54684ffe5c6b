"""A small valid train recipe, and a way to collect the problems of a wrong one."""

from collections.abc import Callable
from typing import Any

import pytest

from core.recipes import Problem, RecipeError, parse_recipe

TRAIN: dict[str, Any] = {
    "kind": "train",
    "model": "smollm2-135m",
    "data": {"dataset": "gsm8k"},
    "max_steps": 100,
    "prompts_per_step": 8,
    "num_generations": 4,
    "max_completion_length": 64,
}
EVAL: dict[str, Any] = {"kind": "eval", "model": "smollm2-135m", "suites": ["gsm8k"]}
ANALYSIS: dict[str, Any] = {"kind": "analysis", "run": "run:7f3a", "compute": ["weight_linearity"]}

Problems = Callable[..., dict[str, Problem]]


@pytest.fixture
def train() -> dict[str, Any]:
    return {**TRAIN, "data": dict(TRAIN["data"])}


@pytest.fixture
def evaluation() -> dict[str, Any]:
    return dict(EVAL)


@pytest.fixture
def analysis() -> dict[str, Any]:
    return dict(ANALYSIS)


@pytest.fixture
def problems() -> Problems:
    """The problems of a recipe by their place; the recipe must be refused, and no place may be named twice."""

    def refused(raw: Any, **options: Any) -> dict[str, Problem]:
        with pytest.raises(RecipeError) as caught:
            parse_recipe(raw, **options)
        found = caught.value.problems
        assert all(problem.message and problem.hint for problem in found)
        assert (caught.value.param, caught.value.message, caught.value.hint) == (
            found[0].param,
            found[0].message,
            found[0].hint,
        )
        by_place = {problem.param: problem for problem in found}
        assert len(by_place) == len(found), found
        return by_place

    return refused
