"""Defaults that follow from other blocks: filled in once, so that the stored recipe says everything.

Filling in is idempotent: a value that is there is never changed. It runs on valid recipes only.
"""

from typing import Any

from core.recipes.analysis import AnalysisRecipe
from core.recipes.base import Options, Prompt
from core.recipes.evaluation import EvalRecipe
from core.recipes.extrapolation import COMPANION_TEMPERATURES, Extrapolation
from core.recipes.gym_tasks import PREFIX as GYM
from core.recipes.model_refs import is_run_ref
from core.recipes.rewards import RewardTerm
from core.recipes.sources import DEFAULT_GYM_SIZE, HOLDOUT, suite_items, verifier
from core.recipes.train import DamageStop, Looks, TrainRecipe

SMALLEST_DRAW = 64
LARGEST_DRAW = 200


def fill_train(recipe: TrainRecipe) -> TrainRecipe:
    """Fill in the name, the reward's verifier, the engine, the constant divisor, and the looks' size and rule."""
    algorithm = recipe.algorithm
    if algorithm.aggregation == "seq_mean_token_sum_norm" and algorithm.norm_length is None:
        algorithm = algorithm.model_copy(update={"norm_length": recipe.max_completion_length})
    looks, damage_stop = _fill_looks(recipe)
    source = recipe.data.dataset.rpartition(":")[2].removesuffix(".jsonl")
    return recipe.model_copy(
        update={
            "name": recipe.name or _name(algorithm.name, recipe.model, source),
            "algorithm": algorithm,
            "data": recipe.data.model_copy(update={"options": _sized(recipe.data.dataset, recipe.data.options)}),
            "rewards": _fill_rewards(recipe),
            "engine": _engine(recipe),
            "looks": looks,
            "damage_stop": damage_stop,
        }
    )


def fill_eval(recipe: EvalRecipe) -> EvalRecipe:
    """Fill in the name, the engine, and the prompt where no run has one of its own."""
    prompt = recipe.prompt if recipe.prompt is not None or is_run_ref(recipe.model) else Prompt()
    return recipe.model_copy(
        update={
            "name": recipe.name or _name("eval", recipe.model, recipe.suites[0].suite.rpartition(":")[2]),
            "engine": _engine(recipe),
            "prompt": prompt,
            "extrapolation": _fill_extrapolation(recipe),
            "suites": tuple(
                spec.model_copy(update={"options": _sized(spec.suite, spec.options)}) for spec in recipe.suites
            ),
        }
    )


def fill_analysis(recipe: AnalysisRecipe) -> AnalysisRecipe:
    """Fill in the name."""
    given = recipe.checkpoints
    source = recipe.run or (given.folder if given is not None and given.folder else "checkpoints")
    return recipe.model_copy(update={"name": recipe.name or _name("analysis", source, recipe.compute[0].name)})


def pool_items(recipe: TrainRecipe, suite: str) -> int | None:
    """Number of items a look can draw from: the hold-out's size, or the suite's where it is known."""
    return recipe.data.holdout if suite == HOLDOUT else suite_items(suite)


def stop_pool(recipe: TrainRecipe, looks: Looks) -> int | None:
    """Size of the first suite of the looks, which carries the damage stop, or None when it is not known in advance."""
    return pool_items(recipe, looks.suites[0])


def _fill_looks(recipe: TrainRecipe) -> tuple[Looks | None, DamageStop | None]:
    looks, stop = recipe.looks, recipe.damage_stop
    if looks is None:
        return looks, stop
    if looks.max_completion_length is None:
        looks = looks.model_copy(update={"max_completion_length": recipe.max_completion_length})
    pool = stop_pool(recipe, looks)
    if stop is None or pool is None:
        return looks, stop
    if stop.rule is None:
        stop = stop.model_copy(update={"rule": _rule(looks.m, pool)})
    if stop.rule == "eprocess" and looks.m is None:
        looks = looks.model_copy(update={"m": _draw(pool)})
    return looks, stop


def _fill_extrapolation(recipe: EvalRecipe) -> Extrapolation | None:
    """A sweep over alpha carries one over the temperature of the suites that are sampled, unless the recipe says otherwise."""
    line = recipe.extrapolation
    if line is None or line.temperatures is not None:
        return line
    sweep = len(line.alpha) > 1 and any(spec.temperature > 0 for spec in recipe.suites)
    return line.model_copy(update={"temperatures": COMPANION_TEMPERATURES if sweep else ()})


def _draw(pool: int) -> int:
    return max(1, min(LARGEST_DRAW, pool // 5))


def _rule(m: int | None, pool: int) -> str:
    """eprocess where fresh draws are large enough to decide; else mcnemar_spending on a fixed panel."""
    draw = _draw(pool) if m is None else m
    return "eprocess" if pool >= 5 * draw and draw >= SMALLEST_DRAW else "mcnemar_spending"


def _fill_rewards(recipe: TrainRecipe) -> dict[str, RewardTerm]:
    own = verifier(recipe.data.dataset) or "auto"
    return {(own if term == "auto" else term): spec.filled(term) for term, spec in recipe.rewards.items()}


def _sized(name: str, options: Options) -> Options:
    """A generator's number of items is part of the recipe; its other defaults belong to the package's version."""
    return {"size": DEFAULT_GYM_SIZE, **options} if name.startswith(GYM) else options


def _engine(recipe: TrainRecipe | EvalRecipe) -> str:
    """``auto`` is transformers on a CPU; on a card it stays, since only the worker knows whether it has vLLM."""
    return "transformers" if recipe.engine == "auto" and recipe.device.kind == "cpu" else recipe.engine


def _name(*parts: Any) -> str:
    return " ".join(str(part).rpartition("/")[2] if not str(part).startswith("run:") else str(part) for part in parts)[
        :120
    ]
