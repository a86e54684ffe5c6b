"""The number by which an engine's samples name the weights that made them.

It is a function of the place in the run alone, so that a resumed attempt numbers as an undisturbed one, and it rises along the
run. Without re-grounding it is the step. With re-grounding a step can be followed by weights that no step made: candidates
that are tried and the jump that is taken; so each step then has a hundred numbers, ``100 x step + place``.
"""

from core.recipes import TrainRecipe

PLACES = 100
JUMPED = PLACES - 1
"""The place of the weights with which a run goes on after a cycle."""


def weights_version(recipe: TrainRecipe, step: int, place: int = 0) -> int:
    """Version of the weights of ``step``: ``place`` 0 is what the step's updates left, 1 to 98 what is tried after it."""
    if not 0 <= place < PLACES:
        raise ValueError(f"place is {place}; a step has the places 0 to {PLACES - 1}")
    return step if recipe.regrounding is None else step * PLACES + place
