"""Valid parts of a recipe that this release cannot run yet, each with its reason.

A recipe that uses one of them is understood, planned and hashed; `POST /runs` refuses it by name and a dry run reports it.
Building a feature means deleting its line here.
"""

from collections.abc import Callable, Iterator
from typing import TypeVar

from core.recipes.analysis import AnalysisRecipe
from core.recipes.errors import Problem
from core.recipes.evaluation import EvalRecipe
from core.recipes.models import MODELS
from core.recipes.train import TrainRecipe

R = TypeVar("R")

# Place, whether the recipe uses it, why not yet, what to do instead.
_TRAIN: tuple[tuple[str, Callable[[TrainRecipe], bool], str, str], ...] = (
    (
        "linearity",
        lambda r: r.linearity == "live" and r.lora is not None,
        "live linearity of adapters is not built yet: it would follow the two factors and not their product",
        "set linearity to off and post an analysis run",
    ),
    (
        "model",
        lambda r: r.model in MODELS and MODELS[r.model].experts > 1,
        "models of experts can be planned, but their training is not built yet",
        "choose a dense model of the family",
    ),
    ("device.count", lambda r: r.device.count > 1, "a run uses one card", "set device.count to 1"),
)
_EVAL: tuple[tuple[str, Callable[[EvalRecipe], bool], str, str], ...] = (
    ("device.count", lambda r: r.device.count > 1, "a run uses one card", "set device.count to 1"),
)


def features_missing(recipe: TrainRecipe | EvalRecipe | AnalysisRecipe) -> list[Problem]:
    """Every part of ``recipe`` that this release cannot run; empty when it can run all of it."""
    match recipe:
        case TrainRecipe():
            return list(_of(_TRAIN, recipe))
        case EvalRecipe():
            return list(_of(_EVAL, recipe))
        case AnalysisRecipe():
            return []


def _of(table: tuple[tuple[str, Callable[[R], bool], str, str], ...], recipe: R) -> Iterator[Problem]:
    return (Problem(place, reason, hint) for place, used, reason, hint in table if used(recipe))
