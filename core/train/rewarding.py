"""The recipe's ``rewards`` block made ready for a run: own functions found, pinned by hash, loaded once, and their processes.

What a term is worth is :mod:`core.tasks.rewards`'; here only the attempt's life of the processes is kept.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from core.jobs import UserError
from core.recipes import TrainRecipe
from core.tasks.reward_files import RewardFileError, own_functions
from core.tasks.reward_pool import RewardLoadError, RewardPool
from core.tasks.rewards import RewardSpec


@contextmanager
def rewards_of(recipe: TrainRecipe, folder: Path | None) -> Iterator[RewardSpec]:
    """Yield the recipe's rewards; processes for own functions from ``folder`` live as long as the context.

    Raises :class:`UserError` when a file is missing, is no longer the one that the recipe was accepted with, or cannot be
    loaded, also when that turns out later in the run.
    """
    try:
        functions = own_functions(recipe.rewards, folder)
    except RewardFileError as problem:
        raise UserError("unusable_reward", f"rewards: {problem}; {problem.hint}") from problem
    if not functions:
        yield RewardSpec(recipe.rewards, recipe.seed, recipe.outcome_gate)
        return
    with RewardPool() as runner:
        try:
            runner.check(functions)
            yield RewardSpec(recipe.rewards, recipe.seed, recipe.outcome_gate, functions, runner)
        except RewardLoadError as problem:
            raise UserError(
                "unusable_reward", f"rewards: {problem}; correct the file and post the recipe anew"
            ) from problem
