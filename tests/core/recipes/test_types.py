"""Wrong types, ranges and names are refused at their place, all of them at once."""

from typing import Any

import pytest

from core.recipes import TrainRecipe, parse_recipe


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_steps", True),
        ("max_steps", "100"),
        ("max_steps", 100.0),
        ("max_steps", 100.5),
        ("max_steps", None),
        ("max_steps", [100]),
        ("max_steps", 0),
        ("max_steps", -1),
        ("learning_rate", True),
        ("learning_rate", "1e-6"),
        ("learning_rate", -1e-6),
        ("temperature", 0),
        ("temperature", False),
        ("num_generations", 0),
        ("max_grad_norm", 0),
        ("adam_beta2", 1),
        ("seed", -1),
        ("seed", True),
        ("priority", 1.5),
        ("prompts_per_update", None),
        ("max_attempts", 0),
        ("dtype", "float16"),
        ("dtype", "bf16"),
        ("engine", "sglang"),
        ("lr_schedule", "cosine_with_restarts"),
        ("linearity", "on"),
        ("linearity", True),
        ("name", ""),
        ("name", " x"),
        ("name", "a\nb"),
        ("name", 7),
        ("tags", "demo"),
        ("tags", ["a", "a"]),
        ("after", ["7f3a", "run:7f3a"]),
        ("model", 7),
        ("prompt", "text"),
        ("device", "cuda"),
        ("looks", True),
        ("looks", "10"),
        ("save", False),
        ("save", None),
        ("rewards", {}),
        ("rewards", ["math"]),
    ],
)
def test_a_wrong_value_is_refused_at_its_field(field: str, value: Any, train: dict[str, Any], problems: Any) -> None:
    assert list(problems({**train, field: value})) == [field]


@pytest.mark.parametrize(
    ("extra", "place"),
    [
        ({"save": {"every": 10, "optimizer": 1}}, "save.optimizer"),
        ({"save": {"every": 10, "optimizer": "true"}}, "save.optimizer"),
        ({"save": {"every": 10, "keep": True}}, "save.keep"),
        ({"save": {"every": 10, "keep": "some"}}, "save.keep"),
        ({"save": {"every": 10, "keep": 0}}, "save.keep"),
        ({"algorithm": {"name": "grpo", "mask_truncated": 1}}, "algorithm.mask_truncated"),
        ({"algorithm": {"name": "grpo", "baseline": "no"}}, "algorithm.baseline"),
        ({"algorithm": {"name": "grpo", "eps": True}}, "algorithm.eps"),
        ({"algorithm": {"name": "grpo", "std": True}}, "algorithm.std"),
        ({"algorithm": {"name": "grpo", "std": 1}}, "algorithm.std"),
        ({"algorithm": {"name": "grpo", "std": "false"}}, "algorithm.std"),
        ({"algorithm": {"name": 3}}, "algorithm.name"),
        ({"algorithm": 3}, "algorithm"),
        ({"data": {"dataset": "gsm8k", "holdout": True}}, "data.holdout"),
        ({"data": {"dataset": "gsm8k", "holdout": -1}}, "data.holdout"),
        ({"device": {"kind": "rocm"}}, "device.kind"),
        ({"device": {"memory_gib": 0}}, "device.memory_gib"),
        ({"rewards": {"math": True}}, "rewards.math"),
        ({"rewards": {"math": "1"}}, "rewards.math"),
        ({"prompt": {"stop": [""]}}, "prompt.stop.0"),
        ({"prompt": {"system": False}}, "prompt.system"),
        ({"tags": ["ok", "not ok"]}, "tags.1"),
        ({"after": ["nope"]}, "after.0"),
        ({"stop": {"target": 1.5}}, "stop.target"),
        ({"damage_stop": {"alpha": 0}, "looks": 10}, "damage_stop.alpha"),
        ({"lora": {"r": 0}}, "lora.r"),
    ],
)
def test_a_wrong_value_in_a_block_is_refused_at_its_dotted_place(
    extra: dict[str, Any], place: str, train: dict[str, Any], problems: Any
) -> None:
    assert list(problems({**train, **extra})) == [place]


@pytest.mark.parametrize("off", [False, 0, 0.0, None, "none"])
def test_every_way_to_say_no_std_means_no_std(off: Any, train: dict[str, Any]) -> None:
    recipe = parse_recipe({**train, "algorithm": {"name": "grpo", "std": off}})
    assert isinstance(recipe, TrainRecipe)
    assert recipe.algorithm.std == "none"


@pytest.mark.parametrize("field", ["looks", "damage_stop", "regrounding", "lora", "stop"])
def test_false_switches_a_block_off_as_null_does(field: str, train: dict[str, Any]) -> None:
    assert parse_recipe({**train, field: False}) == parse_recipe({**train, field: None}) == parse_recipe(train)


@pytest.mark.parametrize(
    ("short", "long"),
    [
        ({"algorithm": "rloo"}, {"algorithm": {"name": "rloo"}}),
        ({"data": "gsm8k"}, {"data": {"dataset": "gsm8k"}}),
        ({"optimizer": "sgd"}, {"optimizer": {"name": "sgd"}}),
        ({"looks": 10}, {"looks": {"every": 10}}),
        ({"looks": 10, "damage_stop": "threshold"}, {"looks": {"every": 10}, "damage_stop": {"rule": "threshold"}}),
        ({"looks": 10, "damage_stop": "auto"}, {"looks": 10, "damage_stop": {}}),
        ({"looks": 10, "damage_stop": "off"}, {"looks": 10}),
        ({"save": 5}, {"save": {"every": 5}}),
        ({"linearity": {"name": "live"}}, {"linearity": "live"}),
        ({"algorithm": {"kl": 0.1}}, {"algorithm": {"kl": {"coef": 0.1}}}),
    ],
)
def test_a_name_or_number_stands_for_the_block(
    short: dict[str, Any], long: dict[str, Any], train: dict[str, Any]
) -> None:
    assert parse_recipe({**train, **short}) == parse_recipe({**train, **long})


@pytest.mark.parametrize(
    ("extra", "place", "allowed"),
    [
        ({"algorithm": "ppo"}, "algorithm", ["grpo", "gspo", "rloo", "dr_grpo", "dapo"]),
        ({"optimizer": "adam"}, "optimizer.name", ["adamw", "sgd", "adamw_offload"]),
        ({"data": "gsm9k"}, "data", ["gsm8k", "math", "reasoning_gym:TASK", "file:NAME.jsonl"]),
        ({"data": {"dataset": "reasoning_gym:chain_summ"}}, "data.dataset", ["chain_sum", "leg_counting"]),
        ({"rewards": {"maths": 1.0}}, "rewards", ["math", "reasoning_gym", "length"]),
        ({"looks": {"every": 5, "suites": ["hold_out"]}}, "looks.suites.0", ["holdout", "math500"]),
        ({"looks": 5, "damage_stop": "bonferroni"}, "damage_stop.rule", ["eprocess", "mcnemar_spending", "threshold"]),
        ({"model": "Qwen/Qwen2.5-1.5B-Instrct"}, "model", ["Qwen/Qwen2.5-1.5B-Instruct", "smollm2-135m"]),
    ],
)
def test_an_unknown_name_is_answered_with_the_list_of_what_is_allowed(
    extra: dict[str, Any], place: str, allowed: list[str], train: dict[str, Any], problems: Any
) -> None:
    found = problems({**train, **extra})
    assert [param for param in found if place.startswith(param)] == list(found)
    (problem,) = found.values()
    assert all(name in problem.hint for name in allowed)


def test_the_closest_name_is_suggested(train: dict[str, Any], problems: Any) -> None:
    assert "did you mean 'gsm8k'?" in problems({**train, "data": "gsm9k"})["data"].hint


def test_every_problem_is_told_not_only_the_first(train: dict[str, Any], problems: Any) -> None:
    wrong = {
        **train,
        "lr": 1e-6,
        "max_steps": "many",
        "temperature": -1,
        "algorithm": {"name": "grpo", "variance": "population"},
        "prompts_per_update": 3,
        "looks": {"every": 10, "base_runs": 0},
        "tags": ["x y"],
    }
    expected = {
        "lr", "max_steps", "temperature", "algorithm.variance", "prompts_per_update", "looks.base_runs", "tags.0",
    }  # fmt: skip
    assert set(problems(wrong)) == expected


def test_a_contradiction_that_rests_on_a_wrong_field_is_not_told(train: dict[str, Any], problems: Any) -> None:
    assert list(problems({**train, "prompts_per_step": "8", "prompts_per_update": 3})) == ["prompts_per_step"]


def test_missing_fields_are_named(problems: Any) -> None:
    assert set(problems({"kind": "train"})) == {
        "model", "data", "max_steps", "prompts_per_step", "num_generations", "max_completion_length",
    }  # fmt: skip


@pytest.mark.parametrize("kind", [None, "", "trian", 3, ["train"]])
def test_the_kind_is_asked_first(kind: Any, problems: Any) -> None:
    found = problems({"kind": kind})
    assert list(found) == ["kind"]
    assert "train, eval, analysis" in found["kind"].hint


def test_a_missing_kind_is_named(problems: Any) -> None:
    assert list(problems({})) == ["kind"]


def test_recipes_cannot_be_changed(train: dict[str, Any]) -> None:
    recipe = parse_recipe(train)
    with pytest.raises(ValueError, match="frozen"):
        recipe.seed = 3  # type: ignore[misc]
