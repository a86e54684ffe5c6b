"""What a run will cost at most: tokens, samples, updates, looks, checkpoints and their disk. No times and no money.

Tokens are upper bounds (every completion at its longest); how fast a card makes them is measured, not planned.
"""

from dataclasses import dataclass

from core.planning.memory import GIB, adapter_parameters, moment_bytes
from core.recipes.catalogue import ModelFacts
from core.recipes.evaluation import EvalRecipe
from core.recipes.resolution import pool_items
from core.recipes.train import TrainRecipe, look_steps

FOLDER_BYTES = 4 * 2**20  # estimate: tokenizer, configuration and counters of a checkpoint folder


@dataclass(frozen=True)
class Cost:
    """Upper bounds of one run.

    ``look_items`` counts every item asked at base runs and looks; None where a suite's size is not known in advance.
    """

    samples: int
    tokens_generated: int
    updates: int
    looks: int
    look_items: int | None
    checkpoints: int
    disk_gib: float


def estimate(recipe: TrainRecipe, facts: ModelFacts) -> Cost:
    """The cost of a train run; ``tokens_generated`` counts rollouts and, where their number is known, looks."""
    # Dynamic sampling may draw all that a step reserves; supervised algorithms draw nothing.
    samples = 0 if recipe.algorithm.supervised else recipe.max_steps * recipe.prompts_reserved * recipe.num_generations
    items = look_items(recipe)
    tokens = samples * recipe.max_completion_length
    if recipe.looks is not None and items is not None:
        tokens += items * (recipe.looks.max_completion_length or recipe.max_completion_length)
    return Cost(
        samples=samples,
        tokens_generated=tokens,
        updates=recipe.max_steps * recipe.updates_per_step,
        looks=look_count(recipe),
        look_items=items,
        checkpoints=checkpoint_count(recipe),
        disk_gib=round(disk_bytes(recipe, facts) / GIB, 3),
    )


def eval_samples(recipe: EvalRecipe, sizes: dict[str, int]) -> int:
    """Completions of an eval run, all models counted; ``sizes`` gives the number of items by suite."""
    asked = [(spec, min(sizes[spec.suite], spec.items or sizes[spec.suite]) * spec.n) for spec in recipe.suites]
    per_model = sum(count for _, count in asked)
    line = recipe.extrapolation
    if line is None:
        return per_model * (1 + len(recipe.against))
    companions = sum(
        count * sum(temperature != spec.temperature for temperature in line.temperatures or ())
        for spec, count in asked
        if spec.temperature > 0
    )
    return per_model * (1 + len(recipe.against) + len(line.alpha)) + companions


def look_count(recipe: TrainRecipe) -> int:
    """Looks after the base."""
    return 0 if recipe.looks is None else len(look_steps(recipe.max_steps, recipe.looks.every))


def look_items(recipe: TrainRecipe) -> int | None:
    """Items asked: of the first suite all ``base_runs`` times and ``m`` a look; of the others all, once and at each look."""
    if recipe.looks is None:
        return 0
    total = 0
    for place, suite in enumerate(recipe.looks.suites):
        pool = pool_items(recipe, suite)
        if pool is None:
            return None
        if place == 0:
            total += pool * recipe.looks.base_runs + look_count(recipe) * min(pool, recipe.looks.m or pool)
        else:
            total += pool * (1 + look_count(recipe))
    return total


def checkpoint_count(recipe: TrainRecipe) -> int:
    """Checkpoints kept at once: step 0, one every ``save.every`` steps, the last step; at most ``save.keep`` and step 0."""
    count = 1 + -(-recipe.max_steps // recipe.save.every)
    return count if recipe.save.keep == "all" else min(count, recipe.save.keep + 1)


def checkpoint_bytes(recipe: TrainRecipe, facts: ModelFacts) -> int:
    """One checkpoint: fp32 weights, adapters beside them, the optimizer's moments where kept, the folder's small files."""
    adapters = 0 if recipe.lora is None else adapter_parameters(facts, recipe.lora)
    moments = moment_bytes(recipe.optimizer, adapters or facts.parameters) if recipe.save.optimizer else 0
    return 4 * (facts.parameters + adapters) + moments + FOLDER_BYTES


def disk_bytes(recipe: TrainRecipe, facts: ModelFacts) -> int:
    """All kept checkpoints, and one more while it is written aside.

    With ``save.optimizer: false`` the newest has the optimizer's moments nevertheless, and so has the one being written.
    """
    newest = recipe.model_copy(update={"save": recipe.save.model_copy(update={"optimizer": True})})
    return (checkpoint_count(recipe) - 1) * checkpoint_bytes(recipe, facts) + 2 * checkpoint_bytes(newest, facts)
