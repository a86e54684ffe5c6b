"""Algorithm names, presets, and options that an algorithm does not use."""

from typing import Any

import pytest

from core.recipes import TrainRecipe, parse_recipe
from core.recipes.algorithm import Algorithm


def parsed(train: dict[str, Any], algorithm: Any) -> Algorithm:
    recipe = parse_recipe({**train, "algorithm": algorithm})
    assert isinstance(recipe, TrainRecipe)
    return recipe.algorithm


def test_dr_grpo_is_grpo_without_std_and_with_a_constant_divisor(train: dict[str, Any]) -> None:
    got = parsed(train, "dr_grpo")
    assert (got.name, got.std, got.aggregation, got.norm_length) == ("grpo", "none", "seq_mean_token_sum_norm", 64)


def test_dapo_is_grpo_over_tokens_with_the_wide_clip_and_truncated_samples_masked(train: dict[str, Any]) -> None:
    got = parsed(train, "dapo")
    assert (got.name, got.aggregation, got.clip_low, got.clip_high) == ("grpo", "token_mean", 0.2, 0.28)
    assert got.mask_truncated


def test_gspo_clips_where_its_paper_does(train: dict[str, Any]) -> None:
    got = parsed(train, "gspo")
    assert (got.name, got.clip_low, got.clip_high, got.dual_clip) == ("gspo", 3e-4, 4e-4, None)


def test_what_the_recipe_says_wins_over_the_preset(train: dict[str, Any]) -> None:
    assert parsed(train, {"name": "gspo", "clip_low": 0.2, "clip_high": 0.28}).clip_high == 0.28
    assert parsed(train, {"name": "dr_grpo", "norm_length": 1000, "std": "sample"}).norm_length == 1000
    assert parsed(train, {"name": "dapo", "mask_truncated": False}).mask_truncated is False


@pytest.mark.parametrize(("algorithm", "place"), [
    ({"name": "grpo", "variance": "population"}, "algorithm.variance"),
    ({"name": "rloo", "std": "none"}, "algorithm.std"),
    ({"name": "centered", "eps": 1e-4}, "algorithm.eps"),
    ({"name": "grpo", "baseline": True}, "algorithm.baseline"),
    ({"name": "gspo", "aggregation": "token_mean"}, "algorithm.aggregation"),
    ({"name": "grpo", "norm_length": 100}, "algorithm.norm_length"),
])  # fmt: skip
def test_an_option_that_would_do_nothing_is_refused(
    algorithm: dict[str, Any], place: str, train: dict[str, Any], problems: Any
) -> None:
    assert list(problems({**train, "algorithm": algorithm})) == [place]


def test_an_option_without_effect_may_be_spelt_out_at_its_default(train: dict[str, Any]) -> None:
    assert parsed(train, {"name": "rloo", "std": "sample", "eps": 1e-6, "baseline": False}) == parsed(train, "rloo")
