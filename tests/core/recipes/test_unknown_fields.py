"""A field that is not known is refused by name, with what to write instead."""

from typing import Any

import pytest
from pydantic import BaseModel

from core.recipes import AnalysisRecipe, EvalRecipe, TrainRecipe
from core.recipes.hints import FOREIGN_NAMES
from core.recipes.problems import _block

TRAINERS_NAMES = {
    "lr": "learning_rate",
    "batch_size": "prompts_per_step",
    "per_device_train_batch_size": "prompts_per_step",
    "n": "num_generations",
    "rollout.n": "num_generations",
    "num_samples": "num_generations",
    "max_new_tokens": "max_completion_length",
    "max_response_length": "max_completion_length",
    "beta": "algorithm.kl.coef",
    "kl_coef": "algorithm.kl.coef",
    "epsilon": "algorithm.clip_low",
    "epsilon_high": "algorithm.clip_high",
    "clip_ratio": "algorithm.clip_high",
    "scale_rewards": "algorithm.std",
    "loss_type": "algorithm.aggregation",
    "total_training_steps": "max_steps",
    "total_epochs": "max_steps",
    "train_batch_size": "prompts_per_step",
    "ppo_mini_batch_size": "prompts_per_update",
    "warmup_steps": "warmup_updates",
    "gradient_accumulation_steps": "not needed",
    "eval_steps": "looks.every",
    "save_steps": "save.every",
    "top_p": "full distribution",
    "trainer": "at the top of the recipe",
    "actor_rollout_ref": "at the top of the recipe",
    "resume_from_checkpoint": "run:ID/step-N",
    "importance_sampling_level": "gspo",
    "log_completions": "always recorded",
    "stop_words": "prompt.stop",
    "disable_dropout": "lora.dropout",
}


@pytest.mark.parametrize(("name", "instead"), TRAINERS_NAMES.items())
def test_another_trainers_name_is_answered_with_ours(
    name: str, instead: str, train: dict[str, Any], problems: Any
) -> None:
    found = problems({**train, name: 1})
    assert list(found) == [name]
    assert name in found[name].message
    assert instead in found[name].hint


def test_the_table_of_foreign_names_is_large_and_points_at_real_fields() -> None:
    assert len(FOREIGN_NAMES) >= 40
    for name, foreign in FOREIGN_NAMES.items():
        assert foreign.field or foreign.note, name
        if foreign.field:
            assert any(_has_field(cls, foreign.field) for cls in (TrainRecipe, EvalRecipe, AnalysisRecipe)), foreign
        assert name not in TrainRecipe.model_fields, name


def _has_field(cls: type[BaseModel], dotted: str) -> bool:
    first, _, rest = dotted.partition(".")
    if first not in cls.model_fields:
        return False
    block = _block(cls.model_fields[first].annotation)
    return not rest or (block is not None and _has_field(block, rest))


def test_a_required_field_under_a_foreign_name_is_told_once(train: dict[str, Any], problems: Any) -> None:
    del train["num_generations"]
    assert list(problems({**train, "n": 8})) == ["n"]


def test_a_foreign_name_inside_a_block_is_answered_too(train: dict[str, Any], problems: Any) -> None:
    found = problems({**train, "algorithm": {"name": "grpo", "clip_ratio_high": 0.3}})
    assert "algorithm.clip_high" in found["algorithm.clip_ratio_high"].hint


@pytest.mark.parametrize(
    ("extra", "place", "near"),
    [
        ({"num_generation": 4}, "num_generation", "num_generations"),
        ({"learnin_rate": 1e-6}, "learnin_rate", "learning_rate"),
        ({"looks": {"every": 10, "suite": ["holdout"]}}, "looks.suite", "suites"),
        ({"algorithm": {"kl": {"coeff": 0.1}}}, "algorithm.kl.coeff", "coef"),
        ({"data": {"dataset": "gsm8k", "option": {}}}, "data.option", "options"),
    ],
)
def test_a_misspelt_field_is_answered_with_the_closest(
    extra: dict[str, Any], place: str, near: str, train: dict[str, Any], problems: Any
) -> None:
    found = problems({**train, **extra})
    assert list(found) == [place]
    assert f"did you mean '{near}'?" in found[place].hint


def test_a_field_like_no_other_is_answered_with_the_list(train: dict[str, Any], problems: Any) -> None:
    hint = problems({**train, "save": {"every": 10, "zzz": 1}})["save.zzz"].hint
    assert "every, keep, optimizer" in hint


@pytest.mark.parametrize("key", ["a.b", "", "suites.0", "[key]", "model.x", "é"])
def test_odd_keys_are_refused_and_not_stumbled_over(key: str, train: dict[str, Any], problems: Any) -> None:
    assert list(problems({**train, key: 1})) == [key]


def test_fields_of_another_kind_are_not_known(evaluation: dict[str, Any], problems: Any) -> None:
    assert list(problems({**evaluation, "max_steps": 10})) == ["max_steps"]
