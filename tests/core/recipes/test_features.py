"""What this release cannot run is listed by name, with its reason, and nothing else is."""

from typing import Any

import pytest

from core.recipes import features_missing, parse_recipe

CPU = {"device": {"kind": "cpu"}}


def missing(raw: dict[str, Any]) -> list[str]:
    found = features_missing(parse_recipe(raw))
    assert all(problem.message and problem.hint for problem in found)
    return [problem.param for problem in found]


@pytest.mark.parametrize("algorithm", ["grpo", "reinforce_plus_plus", "rloo", "centered", "gspo", "dr_grpo", "dapo"])
@pytest.mark.parametrize("optimizer", ["adamw", "adamw_offload", "adamw_8bit", "sgd"])
def test_what_is_built_runs(algorithm: str, optimizer: str, train: dict[str, Any]) -> None:
    assert (
        missing(
            {**train, **CPU, "algorithm": algorithm, "optimizer": optimizer, "looks": 10, "damage_stop": "eprocess"}
        )
        == []
    )


@pytest.mark.parametrize("dataset", ["gsm8k", "math", "reasoning_gym:chain_sum", "file:mine.jsonl", "dapo_math_17k"])
def test_data_with_answers_runs(dataset: str, train: dict[str, Any]) -> None:
    assert missing({**train, **CPU, "data": dataset}) == []


@pytest.mark.parametrize(
    ("extra", "place"),
    [
        ({"model": "Qwen/Qwen3-30B-A3B"}, "model"),
        ({"linearity": "live", "lora": {"r": 16}}, "linearity"),
        ({"device": {"kind": "cpu", "count": 2}}, "device.count"),
    ],
)
def test_what_is_not_built_is_named(extra: dict[str, Any], place: str, train: dict[str, Any]) -> None:
    assert missing({**train, **CPU, **extra}) == [place]


@pytest.mark.parametrize("engine", ["auto", "transformers", "vllm"])
def test_either_engine_runs_on_either_device(engine: str, train: dict[str, Any], evaluation: dict[str, Any]) -> None:
    for recipe in (train, evaluation):
        assert missing({**recipe, "engine": engine}) == missing({**recipe, **CPU, "engine": engine}) == []


@pytest.mark.parametrize("dataset", ["mbpp", "ifeval", "file:mine.jsonl"])
def test_code_and_instructions_can_be_trained_on(dataset: str, train: dict[str, Any]) -> None:
    split = {"split": "test"} if dataset == "ifeval" else {}
    assert missing({**train, **CPU, "data": {"dataset": dataset, "holdout": 20, **split}}) == []


@pytest.mark.parametrize("suite", ["ifeval", "mbpp", "file:mine.jsonl", "reasoning_gym:chain_sum", "livecodebench"])
def test_looks_and_evaluations_ask_any_suite(suite: str, train: dict[str, Any], evaluation: dict[str, Any]) -> None:
    assert missing({**train, **CPU, "looks": {"every": 10, "suites": ["holdout", suite]}}) == []
    assert missing({**evaluation, **CPU, "suites": ["gsm8k", suite]}) == []


def test_analyses_are_named_one_by_one(analysis: dict[str, Any]) -> None:
    assert missing({**analysis, "compute": ["weight_linearity", "gradient_noise"]}) == []
