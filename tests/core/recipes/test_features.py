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
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
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
        ({"optimizer": "adamw_offload"}, "optimizer.name"),
        ({"optimizer": "adamw_8bit"}, "optimizer.name"),
        ({"lora": {"r": 16}}, "lora"),
        ({"linearity": "live"}, "linearity"),
        ({"algorithm": {"importance_correction": "truncate"}}, "algorithm.importance_correction.mode"),
        ({"algorithm": {"kl": {"coef": 0.1, "in_reward": True}}}, "algorithm.kl.in_reward"),
        ({"data": {"dataset": "mbpp", "holdout": 20}}, "rewards.code"),
        ({"looks": {"every": 10, "suites": ["holdout", "ifeval"]}}, "looks.suites.1"),
        ({"looks": {"every": 10, "suites": ["file:mine.jsonl"]}}, "looks.suites.0"),
        ({"device": {"kind": "cpu", "count": 2}}, "device.count"),
    ],
)
def test_what_is_not_built_is_named(extra: dict[str, Any], place: str, train: dict[str, Any]) -> None:
    assert missing({**train, **CPU, **extra}) == [place]


@pytest.mark.parametrize("engine", ["auto", "transformers", "vllm"])
def test_either_engine_runs_on_either_device(engine: str, train: dict[str, Any], evaluation: dict[str, Any]) -> None:
    for recipe in (train, evaluation):
        assert missing({**recipe, "engine": engine}) == missing({**recipe, **CPU, "engine": engine}) == []


def test_suites_and_analyses_are_named_one_by_one(evaluation: dict[str, Any], analysis: dict[str, Any]) -> None:
    assert missing({**evaluation, **CPU, "suites": ["gsm8k", "humaneval", "ifbench"]}) == ["suites.1", "suites.2"]
    assert missing({**analysis, "compute": ["weight_linearity", "token_linearity"]}) == ["compute.1"]
