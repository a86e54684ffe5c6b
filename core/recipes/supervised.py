"""What a supervised recipe (`sft`, `noisy_sft`) has and lacks: solutions to learn, and nothing that is sampled or rewarded.

Options of the algorithm itself are checked where they are declared.
"""

from collections.abc import Iterator

from core.recipes.errors import Problem
from core.recipes.sources import verifier
from core.recipes.train import TrainRecipe


def supervised_problems(recipe: TrainRecipe) -> Iterator[Problem]:
    """Fields that mean nothing in this recipe: those of sampling with a supervised algorithm, of solutions without one."""
    name = recipe.algorithm.name
    if not recipe.algorithm.supervised:
        if recipe.data.solution is not None:
            yield Problem("data.solution", f"{name} learns from samples, not from solutions", "remove it, or use sft")
        return
    if recipe.num_generations != 1:
        yield Problem("num_generations", f"{name} has one solution for each prompt", "leave it out")
    if recipe.temperature != 1.0:
        yield Problem("temperature", f"{name} samples nothing; cross entropy is at temperature 1", "leave it out")
    if recipe.outcome_gate:
        yield Problem("outcome_gate", f"{name} has no rewards", "leave it out")
    own = ("auto", verifier(recipe.data.dataset) or "auto")
    if any(term not in own or spec.weight != 1.0 for term, spec in recipe.rewards.items()):
        yield Problem("rewards", f"{name} has no rewards; looks grade with the items' own verifier", "leave it out")
