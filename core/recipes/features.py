"""Valid parts of a recipe that this release cannot run yet, each with its reason.

A recipe that uses one of them is understood, planned and hashed; `POST /runs` refuses it by name and a dry run reports it.
Building a feature means deleting its line here.
"""

from collections.abc import Callable, Iterator
from typing import TypeVar

from core.recipes.analysis import AnalysisRecipe
from core.recipes.errors import Problem
from core.recipes.evaluation import EvalRecipe
from core.recipes.train import TrainRecipe

R = TypeVar("R")

# Place, whether the recipe uses it, why not yet, what to do instead.
_TRAIN: tuple[tuple[str, Callable[[TrainRecipe], bool], str, str], ...] = (
    (
        "regrounding",
        lambda r: r.regrounding is not None and r.lora is not None,
        "re-grounding of adapters is not built yet: the jump of a product of rank r has rank 2 r",
        "remove lora or regrounding",
    ),
    (
        "linearity",
        lambda r: r.linearity == "live" and r.lora is not None,
        "live linearity of adapters is not built yet: it would follow the two factors and not their product",
        "set linearity to off and post an analysis run",
    ),
    ("device.count", lambda r: r.device.count > 1, "a run uses one card", "set device.count to 1"),
)
_EVAL: tuple[tuple[str, Callable[[EvalRecipe], bool], str, str], ...] = (
    ("device.count", lambda r: r.device.count > 1, "a run uses one card", "set device.count to 1"),
)
_ANALYSES = {"gradient_noise": "gradient noise is not built yet"}


def features_missing(recipe: TrainRecipe | EvalRecipe | AnalysisRecipe) -> list[Problem]:
    """Every part of ``recipe`` that this release cannot run; empty when it can run all of it."""
    match recipe:
        case TrainRecipe():
            return list(_of(_TRAIN, recipe))
        case EvalRecipe():
            return list(_of(_EVAL, recipe))
        case AnalysisRecipe():
            return list(_analyses(recipe))


def _of(table: tuple[tuple[str, Callable[[R], bool], str, str], ...], recipe: R) -> Iterator[Problem]:
    return (Problem(place, reason, hint) for place, used, reason, hint in table if used(recipe))


def _analyses(recipe: AnalysisRecipe) -> Iterator[Problem]:
    for index, spec in enumerate(recipe.compute):
        if spec.name in _ANALYSES:
            yield Problem(f"compute.{index}", _ANALYSES[spec.name], "weight_linearity can be computed")
