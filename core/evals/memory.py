"""What a job says when the card ran out of memory: the person has to change the recipe, and is told by how little.

Trying again would end the same way, so it is no failure of the system. Planning is ``core.planning``'s.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from core.engines.models import ModelError
from core.engines.references import find_model
from core.jobs import RunContext, UserError
from core.planning.facts import PlanError, folder_facts
from core.planning.memory import GIB
from core.planning.plan import Card
from core.planning.relief import relief
from core.recipes import EvalRecipe, TrainRecipe


@contextmanager
def out_of_memory_explained(context: RunContext, recipe: TrainRecipe | EvalRecipe) -> Iterator[None]:
    """Turn torch's ``OutOfMemoryError`` into a :class:`UserError` with the plan's smallest change."""
    try:
        yield
    except torch.OutOfMemoryError as problem:
        change = _smallest_change(context, recipe)
        advice = (
            f"smallest change that lowers the peak: {change}" if change else "no single change of the recipe is enough"
        )
        first = str(problem).partition(". ")[0]
        raise UserError("out_of_memory", f"{context.device['name']} ran out of memory ({first}); {advice}") from problem


def _smallest_change(context: RunContext, recipe: TrainRecipe | EvalRecipe) -> str | None:
    try:
        folder = find_model(context.db, context.settings, context.fence, recipe.model).folder
        facts = folder_facts(recipe.model, folder)
    except (ModelError, PlanError):
        return None
    return relief(recipe, Card(context.device["memory_bytes"] / GIB, context.device["name"]), facts)
