"""The recipes of the paper's Table 7: the rows as they are printed, and a sibling of each that fits 24 GiB."""

from pathlib import Path

import pytest

from core.planning import Card, estimate, model_facts, plan
from core.recipes import TrainRecipe, parse_recipe

FOLDER = Path(__file__).parents[3] / "recipes" / "paper"
README = (FOLDER.parent / "README.md").read_text()
R1_QWEN = "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B"

# Typed from the table: model, algorithm, optimizer, learning rate, prompts a step, rollouts. SGD's rate is appendix C.1's.
ROWS = {
    "grpo-r1-qwen-1.5b-lr1e-6": (R1_QWEN, "grpo", "adamw", 1e-6, 128, 16),
    "grpo-r1-qwen-1.5b-lr3e-6": (R1_QWEN, "grpo", "adamw", 3e-6, 128, 16),
    "grpo-r1-qwen-1.5b-lr1e-5": (R1_QWEN, "grpo", "adamw", 1e-5, 128, 16),
    "reinforce-plus-plus-r1-qwen-1.5b": (R1_QWEN, "reinforce_plus_plus", "adamw", 1e-6, 128, 16),
    "gspo-r1-qwen-1.5b": (R1_QWEN, "gspo", "adamw", 1e-6, 128, 16),
    "grpo-sgd-r1-qwen-1.5b": (R1_QWEN, "grpo", "sgd", 0.1, 128, 16),
    "grpo-nemotron-1.5b": ("nvidia/OpenMath-Nemotron-1.5B", "grpo", "adamw", 1e-6, 256, 8),
    "grpo-r1-qwen-7b": ("deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", "grpo", "adamw", 1e-6, 256, 16),
    "grpo-r1-llama-8b": ("deepseek-ai/DeepSeek-R1-Distill-Llama-8B", "grpo", "adamw", 1e-6, 256, 16),
    "grpo-qwen3-8b": ("Qwen/Qwen3-8B-Base", "grpo", "adamw", 1e-6, 256, 8),
    "grpo-qwen2.5-32b": ("Qwen/Qwen2.5-32B", "grpo", "adamw", 1e-6, 128, 16),
    "gspo-qwen3-30b-a3b": ("Qwen/Qwen3-30B-A3B", "gspo", "adamw", 1e-6, 512, 16),
    "sft-qwen2.5-1.5b": ("Qwen/Qwen2.5-1.5B", "sft", "adamw", 1e-3, 256, 1),
}


def read(name: str) -> TrainRecipe:
    recipe = parse_recipe((FOLDER / f"{name}.json").read_bytes())
    assert isinstance(recipe, TrainRecipe)
    return recipe


def test_there_are_a_recipe_and_a_sibling_of_every_row() -> None:
    assert {path.stem for path in FOLDER.glob("*.json")} == {f"{row}{end}" for row in ROWS for end in ("", "-24gib")}


@pytest.mark.parametrize("row", ROWS)
def test_a_row_is_as_printed(row: str) -> None:
    recipe = read(row)
    found = (recipe.model, recipe.algorithm.name, recipe.optimizer.name, recipe.learning_rate)
    assert (*found, recipe.prompts_per_step, recipe.num_generations) == ROWS[row]
    assert recipe.lr_schedule == "constant"
    if not recipe.algorithm.supervised:
        assert (recipe.algorithm.clip_low, recipe.algorithm.clip_high) == (0.2, 0.28)
        assert (recipe.algorithm.kl.coef, recipe.algorithm.entropy_coef) == (0, 0)
        assert (recipe.prompts_per_update, recipe.temperature, recipe.max_completion_length) == (64, 1.0, 16_384)


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("end", ["", "-24gib"])
def test_it_is_planned_on_any_card_and_as_the_readme_says_on_its_own(row: str, end: str) -> None:
    recipe = read(row + end)
    for memory in (12, 24, 80):
        planned = plan(recipe, Card(memory, "card"))
        assert planned.fits or planned.peak_gib > planned.budget_gib
    own = plan(recipe, Card(recipe.device.memory_gib, "card"))
    said = next(line for line in README.splitlines() if line.startswith(f"| `paper/{row}{end}.json`")).split("|")[3]
    if own.fits:
        assert said.strip() == f"{recipe.device.memory_gib:g} GiB: {own.peak_gib:.0f} GiB"
    else:
        assert said.strip().startswith(f"not {recipe.device.memory_gib:g} GiB: {own.peak_gib:.0f} GiB")
        assert f"`{own.smallest_change}`" in said
    assert estimate(recipe, model_facts(recipe.model)).disk_gib == own.disk_gib


@pytest.mark.parametrize("row", ROWS)
def test_a_sibling_fits_24_gib_and_is_the_same_experiment(row: str) -> None:
    large, small = read(row), read(f"{row}-24gib")
    assert small.device.memory_gib == 24
    assert plan(small, Card(24, "card")).fits
    assert small.algorithm == large.algorithm
    assert small.data == large.data
    assert (small.prompts_per_step, small.num_generations) == (large.prompts_per_step, large.num_generations)
    same = small.model == large.model
    assert same or model_facts(small.model).parameters < model_facts(large.model).parameters
