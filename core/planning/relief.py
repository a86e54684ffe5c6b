"""What to change after a run did run out of a card's memory, whatever its plan had predicted."""

from dataclasses import replace

from core.planning.plan import Card, plan
from core.recipes.catalogue import ModelFacts
from core.recipes.evaluation import EvalRecipe
from core.recipes.train import TrainRecipe

TIGHTER = 0.9  # the part of the predicted peak that is planned for next, since the prediction was too low


def relief(recipe: TrainRecipe | EvalRecipe, card: Card, facts: ModelFacts) -> str | None:
    """Return one recipe field and its value that lower the predicted peak, None when no single change is enough.

    Where the plan had not fitted anyway this is its smallest change. Where it had, the prediction was too low, so a tenth less
    is planned for; smaller batches alone are reached by ``device.memory_gib``, which they are chosen for.
    """
    planned = plan(recipe, card, facts=facts)
    if not planned.fits:
        return planned.smallest_change
    less = round(TIGHTER * min(planned.peak_gib, planned.budget_gib), 2)
    device = recipe.device.model_copy(update={"memory_gib": less})
    tighter = plan(recipe.model_copy(update={"device": device}), replace(card, memory_gib=less), facts=facts)
    return f"device.memory_gib {less:g}" if tighter.fits else tighter.smallest_change
