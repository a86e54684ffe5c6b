"""Valid parts of a recipe that this release cannot run yet, each with its reason.

A recipe that uses one of them is understood, planned and hashed; `POST /runs` refuses it by name and a dry run reports it.
Building a feature means deleting its line here.
"""

from collections.abc import Callable, Iterator
from typing import TypeVar

from core.recipes.analysis import AnalysisRecipe
from core.recipes.catalogue import SUITES, VERIFIERS
from core.recipes.errors import Problem
from core.recipes.evaluation import EvalRecipe
from core.recipes.sources import HOLDOUT, verifier
from core.recipes.train import TrainRecipe

R = TypeVar("R")

# Place, whether the recipe uses it, why not yet, what to do instead.
_TRAIN: tuple[tuple[str, Callable[[TrainRecipe], bool], str, str], ...] = (
    ("lora", lambda r: r.lora is not None, "adapters are not built yet", "remove lora: all parameters are trained"),
    (
        "linearity",
        lambda r: r.linearity == "live",
        "live linearity is not built yet",
        "set linearity to off and post an analysis run",
    ),
    (
        "optimizer.name",
        lambda r: r.optimizer.name == "adamw_offload",
        "adamw_offload is not built yet",
        "use adamw or sgd",
    ),
    ("optimizer.name", lambda r: r.optimizer.name == "adamw_8bit", "adamw_8bit is not built yet", "use adamw or sgd"),
    (
        "algorithm.importance_correction.mode",
        lambda r: r.algorithm.importance_correction.mode != "none",
        "importance correction is not built yet",
        "set it to none; the mismatch is still a curve",
    ),
    (
        "algorithm.kl.in_reward",
        lambda r: r.algorithm.kl.in_reward and r.algorithm.kl.coef != 0,
        "KL in the reward is not built yet",
        "set in_reward to false: the KL is then in the loss",
    ),
    ("device.count", lambda r: r.device.count > 1, "a run uses one card", "set device.count to 1"),
)
_EVAL: tuple[tuple[str, Callable[[EvalRecipe], bool], str, str], ...] = (
    ("device.count", lambda r: r.device.count > 1, "a run uses one card", "set device.count to 1"),
)
_VERIFIERS = {
    "code": "grading code needs the sandbox, which is not built yet",
    "instructions": "the instruction checks are not built yet",
}
_ANALYSES = {
    "token_linearity": "token linearity is not built yet",
    "logit_linearity": "logit linearity is not built yet",
    "activation_linearity": "activation linearity is not built yet",
}


def features_missing(recipe: TrainRecipe | EvalRecipe | AnalysisRecipe) -> list[Problem]:
    """Every part of ``recipe`` that this release cannot run; empty when it can run all of it."""
    match recipe:
        case TrainRecipe():
            return [*_of(_TRAIN, recipe), *_train_verifiers(recipe)]
        case EvalRecipe():
            return [*_of(_EVAL, recipe), *_suite_verifiers([spec.suite for spec in recipe.suites], "suites")]
        case AnalysisRecipe():
            return list(_analyses(recipe))


def _of(table: tuple[tuple[str, Callable[[R], bool], str, str], ...], recipe: R) -> Iterator[Problem]:
    return (Problem(place, reason, hint) for place, used, reason, hint in table if used(recipe))


def _train_verifiers(recipe: TrainRecipe) -> Iterator[Problem]:
    for term in recipe.rewards:
        if term in VERIFIERS and term in _VERIFIERS:
            yield Problem(f"rewards.{term}", _VERIFIERS[term], "use data with a math or reasoning_gym verifier")
    if recipe.looks is not None:
        yield from _suite_verifiers(list(recipe.looks.suites), "looks.suites")
        for index, suite in enumerate(recipe.looks.suites):
            if suite != HOLDOUT and suite not in SUITES:
                yield Problem(
                    f"looks.suites.{index}", f"looks cannot ask {suite} yet", "use holdout or a suite of the catalogue"
                )


def _suite_verifiers(suites: list[str], place: str) -> Iterator[Problem]:
    for index, suite in enumerate(suites):
        own = "" if suite == HOLDOUT else verifier(suite)
        if own in _VERIFIERS:
            yield Problem(f"{place}.{index}", f"{suite}: {_VERIFIERS[own]}", "use a suite with a math verifier")


def _analyses(recipe: AnalysisRecipe) -> Iterator[Problem]:
    for index, spec in enumerate(recipe.compute):
        if spec.name in _ANALYSES:
            yield Problem(f"compute.{index}", _ANALYSES[spec.name], "weight_linearity can be computed")
