"""Recipes that make weights: the paper's guidelines as defaults, and what contradicts itself named by its field."""

from typing import Any

import pytest

from core.recipes import AnalysisRecipe, features_missing, parse_recipe, recipe_hash, resolved


def spec(compute: Any) -> Any:
    recipe = parse_recipe({"kind": "analysis", "run": "run:7f3a", "compute": [compute]})
    assert isinstance(recipe, AnalysisRecipe)
    assert features_missing(recipe) == []
    assert recipe_hash(parse_recipe(resolved(recipe))) == recipe_hash(recipe)
    return recipe.compute[0]


def test_a_bare_extrapolate_is_the_papers_guidelines() -> None:
    block = spec("extrapolate").extrapolation
    assert (block.a, block.b, block.betas, block.target_steps) == (None, None, (1.25, 1.5, 2.0, 3.0), None)
    assert (block.fit, block.skip_norms, block.keep) == ("two_point", False, "chosen")
    assert (block.evaluate.suite, block.evaluate.confirm, block.evaluate.items) == ("holdout", "holdout", None)


def test_without_evaluation_every_point_is_kept() -> None:
    block = spec({"name": "extrapolate", "extrapolation": {"target_steps": [300], "evaluate": False}}).extrapolation
    assert (block.betas, block.evaluate, block.keep) == ((), None, "all")


def test_an_export_takes_its_defaults_from_its_format() -> None:
    assert spec({"name": "export", "export": {"step": 5}}).export.dtype == "bfloat16"
    assert spec({"name": "export", "export": {"step": 5, "format": "adapter"}}).export.rank == 16
    assert spec({"name": "export", "export": {"step": 5, "format": "gguf"}}).export.rank is None


def test_other_analyses_carry_nothing_of_it() -> None:
    recipe = parse_recipe({"kind": "analysis", "run": "run:7f3a", "compute": ["weight_linearity"]})
    assert not {"extrapolation", "export"} & set(resolved(recipe)["compute"][0])


@pytest.mark.parametrize(
    ("compute", "place"),
    [
        ([{"name": "export"}], "compute.0.export"),
        ([{"name": "export", "export": {"step": 1, "rank": 4}}], "compute.0.export.rank"),
        ([{"name": "export", "export": {"step": 1}, "extrapolation": {}}], "compute.0.extrapolation"),
        ([{"name": "weight_linearity", "export": {"step": 1}}], "compute.0.export"),
        (["extrapolate", "weight_linearity"], "compute.0"),
        ([{"name": "extrapolate", "probe": {}}], "compute.0.probe"),
        ([{"name": "extrapolate", "extrapolation": {"a": 5, "b": 5}}], "compute.0.extrapolation.a"),
        ([{"name": "extrapolate", "extrapolation": {"betas": [2, 2]}}], "compute.0.extrapolation.betas"),
        ([{"name": "extrapolate", "extrapolation": {"betas": []}}], "compute.0.extrapolation.betas"),
        (
            [{"name": "extrapolate", "extrapolation": {"betas": [2], "target_steps": [9]}}],
            "compute.0.extrapolation.betas",
        ),
        (
            [{"name": "extrapolate", "extrapolation": {"evaluate": False, "keep": "chosen"}}],
            "compute.0.extrapolation.keep",
        ),
    ],
)
def test_contradictions_are_named(compute: list[Any], place: str, problems: Any) -> None:
    assert list(problems({"kind": "analysis", "run": "run:7f3a", "compute": compute})) == [place]
