"""The recipes of the API document parse unchanged, and every ready recipe does what recipes/README.md says."""

import json
from pathlib import Path

import pytest

from core.planning import Card, plan
from core.recipes import AnalysisRecipe, EvalRecipe, TrainRecipe, features_missing, parse_recipe, resolved

RECIPES = Path(__file__).parents[3] / "recipes"
FILES = sorted(path.relative_to(RECIPES).as_posix() for path in RECIPES.rglob("*.json"))

# Typed from the API document, so that a change of the example files cannot pass unseen.
TRAIN = r"""{"kind": "train", "name": "q15b-gsm8k", "model": "Qwen/Qwen2.5-1.5B-Instruct",
 "algorithm": "grpo",
 "data": {"dataset": "gsm8k", "split": "train", "holdout": 1000},
 "prompt": {"suffix": "\nPut your final answer within \\boxed{}."},
 "rewards": {"math": 1.0},
 "max_steps": 200, "prompts_per_step": 32, "num_generations": 8, "max_completion_length": 2048,
 "learning_rate": 1e-6, "optimizer": "adamw_offload", "device": {"memory_gib": 24, "count": 1},
 "looks": {"every": 10, "suites": ["holdout"]}, "damage_stop": {"rule": "eprocess", "action": "stop"},
 "regrounding": {"m": 20, "n": 20, "after": 60}, "linearity": "live",
 "save": {"every": 20}, "stop": {"max_hours": 8}, "seed": 1, "tags": ["demo"], "priority": 0, "after": []}"""
EVAL = """{"kind": "eval", "model": "run:7f3a/best", "against": ["base", "run:7f3a/last"],
 "suites": ["gsm8k", "math500", {"suite": "aime24", "n": 32, "temperature": 0.6, "top_p": 0.95}],
 "max_completion_length": 8192}"""
ANALYSIS = """{"kind": "analysis", "run": "run:7f3a", "compute": ["weight_linearity",
 {"name": "token_linearity", "probe": {"suite": "holdout", "items": 50, "n": 4}}]}"""


def test_the_documents_train_recipe_parses_with_every_default() -> None:
    recipe = parse_recipe(TRAIN)
    assert isinstance(recipe, TrainRecipe)
    assert recipe.algorithm.name == "grpo"
    assert recipe.algorithm.std == "sample"
    assert (recipe.algorithm.clip_low, recipe.algorithm.clip_high, recipe.algorithm.dual_clip) == (0.2, 0.28, 3.0)
    assert recipe.algorithm.aggregation == "seq_mean_token_mean"
    assert recipe.prompt.suffix == "\nPut your final answer within \\boxed{}."
    assert recipe.prompt.system is None
    assert recipe.prompts_per_update == 32
    assert recipe.optimizer.name == "adamw_offload"
    assert recipe.dtype == "bfloat16"
    assert recipe.looks is not None
    assert recipe.looks.m == 200
    assert recipe.damage_stop is not None
    assert (recipe.damage_stop.alpha, recipe.damage_stop.margin) == (0.05, 0.01)
    assert recipe.regrounding is not None
    assert recipe.regrounding.moments == "keep"


def test_the_documents_eval_recipe_parses_with_every_default() -> None:
    recipe = parse_recipe(EVAL)
    assert isinstance(recipe, EvalRecipe)
    asked = [(s.suite, s.n, s.temperature, s.top_p) for s in recipe.suites]
    assert asked == [("gsm8k", 1, 0.0, 1.0), ("math500", 1, 0.0, 1.0), ("aime24", 32, 0.6, 0.95)]
    assert recipe.against == ("base", "run:7f3a/last")
    assert recipe.prompt is None


def test_the_documents_analysis_recipe_parses_with_every_default() -> None:
    recipe = parse_recipe(ANALYSIS)
    assert isinstance(recipe, AnalysisRecipe)
    assert [spec.name for spec in recipe.compute] == ["weight_linearity", "token_linearity"]
    assert recipe.compute[0].probe is None
    assert recipe.compute[1].probe is not None
    assert recipe.compute[1].probe.items == 50


@pytest.mark.parametrize(("text", "file"), [(TRAIN, "train"), (EVAL, "eval"), (ANALYSIS, "analysis")])
def test_the_example_files_are_the_documents_recipes(text: str, file: str) -> None:
    assert json.loads((RECIPES / "examples" / f"{file}.json").read_text()) == json.loads(text)


@pytest.mark.parametrize("file", FILES)
def test_a_ready_recipe_parses_and_fits_the_card_it_names(file: str) -> None:
    recipe = parse_recipe((RECIPES / file).read_bytes())
    assert resolved(parse_recipe(resolved(recipe))) == resolved(recipe)
    # Rows of the paper are for eight cards; test_paper holds what is said of them.
    if isinstance(recipe, TrainRecipe) and (not file.startswith("paper/") or file.endswith("-24gib.json")):
        assert plan(recipe, Card(recipe.device.memory_gib, "as the recipe says")).fits


@pytest.mark.parametrize("file", FILES)
def test_the_readme_says_whether_a_ready_recipe_runs(file: str) -> None:
    rows = [line for line in (RECIPES / "README.md").read_text().splitlines() if line.startswith(f"| `{file}`")]
    assert len(rows) == 1
    says_yes = rows[0].rstrip("| ").rpartition("|")[2].strip() == "yes"
    assert says_yes == (not features_missing(parse_recipe((RECIPES / file).read_bytes())))


def test_the_demo_is_what_two_cores_can_do() -> None:
    recipe = parse_recipe((RECIPES / "demo-cpu.json").read_bytes())
    assert isinstance(recipe, TrainRecipe)
    assert recipe.model == "smollm2-135m"
    assert recipe.data.dataset == "reasoning_gym:chain_sum"
    assert recipe.data.holdout == 80
    assert recipe.looks is not None
    assert (recipe.looks.m, recipe.max_steps // recipe.looks.every) == (16, 3)
    assert recipe.dtype == "float32"
    assert recipe.engine == "transformers"
    assert plan(recipe, Card(6, "host")).peak_gib < 5.5
