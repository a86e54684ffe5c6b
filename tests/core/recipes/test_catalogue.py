"""The catalogue's facts agree with published parameter counts, the package's own task list and the data files."""

import gzip
import os
from pathlib import Path

import pytest

from core.recipes.catalogue import ALGORITHMS, DATASETS, MODELS, OPTIMIZERS, REWARD_TERMS, SUITES, VERIFIERS
from core.recipes.gym_tasks import UNSAFE_TASKS, task_files, task_options

# Total parameters as the models' own cards and checkpoint indexes state them.
PUBLISHED = {
    "smollm2-135m": 134_515_008,
    "HuggingFaceTB/SmolLM2-360M-Instruct": 361_821_120,
    "HuggingFaceTB/SmolLM2-1.7B-Instruct": 1_711_376_384,
    "Qwen/Qwen2.5-0.5B": 494_032_768,
    "Qwen/Qwen2.5-1.5B-Instruct": 1_543_714_304,
    "Qwen/Qwen2.5-3B": 3_085_938_688,
    "Qwen/Qwen2.5-7B": 7_615_616_512,
    "Qwen/Qwen2.5-Math-7B": 7_615_616_512,
    "Qwen/Qwen3-0.6B": 596_049_920,
    "Qwen/Qwen3-1.7B": 1_720_574_976,
    "Qwen/Qwen3-4B": 4_022_468_096,
    "Qwen/Qwen3-8B-Base": 8_190_735_360,
    "meta-llama/Llama-3.2-1B": 1_235_814_400,
    "meta-llama/Llama-3.2-3B": 3_212_749_824,
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": 1_777_088_000,
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B": 7_615_616_512,
    "deepseek-ai/DeepSeek-R1-Distill-Llama-8B": 8_030_261_248,
}


@pytest.mark.parametrize(("name", "parameters"), PUBLISHED.items())
def test_a_models_facts_give_its_published_number_of_parameters(name: str, parameters: int) -> None:
    assert MODELS[name].parameters == parameters


def test_every_named_thing_refers_to_known_things() -> None:
    for facts in (*DATASETS.values(), *SUITES.values()):
        assert facts.verifier in VERIFIERS
    assert set(VERIFIERS) < set(REWARD_TERMS)
    assert {"grpo", "reinforce_plus_plus", "rloo", "centered", "gspo"} <= set(ALGORITHMS)
    assert {"adamw", "adamw_offload", "adamw_8bit", "sgd"} == set(OPTIMIZERS)


@pytest.mark.slow
def test_tasks_and_options_read_from_the_source_are_the_packages_own() -> None:
    from dataclasses import fields

    import reasoning_gym  # noqa: F401 - importing it fills the registry
    from reasoning_gym.factory import DATASETS as REGISTERED

    assert set(task_files()) == set(REGISTERED)
    for task, (_, config) in REGISTERED.items():
        assert task_options(task) == {field.name for field in fields(config)}, task
    assert set(REGISTERED) >= UNSAFE_TASKS


def test_unsafe_tasks_are_those_the_generator_refuses() -> None:
    from core.tasks.sources import UNSAFE_TASKS as REFUSED

    assert UNSAFE_TASKS == REFUSED


@pytest.mark.data
def test_the_files_hold_as_many_items_as_the_catalogue_says() -> None:
    folder = Path(os.environ["DRIFTLINE_DATA"])
    for suite in SUITES.values():
        if suite.file != "mbpp.jsonl" and suite.items is not None:
            assert _lines(folder / suite.file) == suite.items, suite.file
    for dataset in DATASETS.values():
        files = {split.file for split in dataset.splits.values()}
        for file in files - {"mbpp.jsonl"}:
            assert _lines(folder / file) == sum(s.items for s in dataset.splits.values() if s.file == file), file
    assert (
        _lines(folder / "mbpp.jsonl") == sum(s.items for s in DATASETS["mbpp"].splits.values()) + 10
    )  # and 10 for prompts


def _lines(path: Path) -> int:
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rb") as stream:
        return sum(1 for line in stream if line.strip())
