"""The engine of a run: which one, how large by the memory plan, opened for training or for evaluation.

Both kinds of job open their engine here, so that one recipe field means one thing. What an engine refuses that the person can
mend becomes a :class:`~core.jobs.UserError`; what fails otherwise stays an error of the system, with the log.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from core.engines.base import Engine, EngineError
from core.engines.models import ModelError
from core.engines.opening import EngineName, Served, Sizes, choose_engine, open_folder, open_live
from core.engines.vllm_engine import Weights
from core.engines.vllm_launch import EngineDiedError, EngineStartError, EngineUnavailableError
from core.jobs import RunContext, UserError
from core.planning.engine import eval_demand, train_demand
from core.planning.facts import PlanError, folder_facts
from core.planning.memory import GIB, element_bytes, kv_bytes_per_token, train_memory
from core.planning.plan import Batches, Card, budget_bytes, eval_tokens, train_batches
from core.recipes import EvalRecipe, TrainRecipe
from core.recipes.catalogue import ModelFacts


@dataclass(frozen=True)
class TrainPlan:
    """The chosen engine, the batch sizes that the memory plan was made for, and the peak it foresees in torch's allocator."""

    name: EngineName
    sizes: Sizes
    batches: Batches
    allocated_gib: float


def chosen_engine(context: RunContext, recipe: TrainRecipe | EvalRecipe) -> EngineName:
    """Which engine the recipe means on this worker."""
    try:
        return choose_engine(recipe.engine, context.device["kind"])
    except EngineUnavailableError as problem:
        raise UserError("engine_unavailable", str(problem)) from problem


def plan_training(context: RunContext, recipe: TrainRecipe, folder: Path) -> TrainPlan:
    """Choose the engine and plan the batches of a train run whose model is ``folder``."""
    name = chosen_engine(context, recipe)
    facts = _facts(recipe, folder)
    planned = recipe.model_copy(update={"engine": name})
    batches = train_batches(planned, facts, budget_bytes(planned, _card(context)))
    demand = train_demand(planned, batches.rollout)
    kv_bytes = demand.cache_tokens * kv_bytes_per_token(facts, element_bytes(recipe.dtype))
    memory = train_memory(planned, facts, batches.micro, batches.rollout, batches.layers)
    sizes = Sizes(demand.length, demand.sequences, batches.rollout, kv_bytes)
    return TrainPlan(name, sizes, batches, memory.allocated / GIB)


def open_for_training(
    plan: TrainPlan,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    *,
    weights: Weights | None = None,
) -> Engine:
    """Open the planned engine on the live ``model``; ``weights`` as in :func:`core.engines.opening.open_live`."""
    try:
        return open_live(plan.name, model, tokenizer, folder, plan.sizes, weights=weights)
    except (EngineStartError, EngineDiedError):
        raise
    except EngineError as problem:
        raise too_long(problem) from problem


@dataclass(frozen=True)
class EvaluationSetting:
    """The chosen engine, in which dtype and where it runs, and the sizes that the memory plan gives it."""

    name: EngineName
    dtype: torch.dtype
    device: torch.device
    sizes: Sizes


def evaluation_setting(context: RunContext, recipe: EvalRecipe, folder: Path) -> EvaluationSetting:
    """Choose the engine and its sizes for the model in ``folder``; where two networks run, their caches are both planned."""
    name = chosen_engine(context, recipe)
    planned = recipe.model_copy(update={"engine": name})
    dtype = torch.float32 if recipe.dtype == "float32" else torch.bfloat16
    device = torch.device("cuda" if context.device["kind"] == "cuda" else "cpu")
    facts = _facts(recipe, folder)
    tokens = eval_tokens(planned, facts, budget_bytes(planned, _card(context)))
    demand = eval_demand(planned, tokens)
    kv_bytes = recipe.networks * demand.cache_tokens * kv_bytes_per_token(facts, element_bytes(recipe.dtype))
    rows = demand.sequences if name == "vllm" else recipe.batch_size
    return EvaluationSetting(name, dtype, device, Sizes(demand.length, rows, tokens, kv_bytes))


def open_for_evaluation(context: RunContext, recipe: EvalRecipe, folder: Path) -> Served:
    """Open the recipe's engine on the weights of ``folder``."""
    setting = evaluation_setting(context, recipe, folder)
    try:
        return open_folder(setting.name, folder, setting.dtype, setting.device, setting.sizes)
    except (EngineStartError, EngineDiedError):
        raise
    except ModelError as problem:
        raise UserError("unusable_model", str(problem)) from problem
    except EngineError as problem:
        raise too_long(problem) from problem


def too_long(problem: EngineError) -> UserError:
    """What an engine refuses an evaluation or a training for: more tokens than its model has positions."""
    return UserError("too_long_for_model", f"{problem}; lower max_prompt_length or max_completion_length")


def _card(context: RunContext) -> Card:
    return Card(context.device["memory_bytes"] / GIB, context.device["name"])


def _facts(recipe: TrainRecipe | EvalRecipe, folder: Path) -> ModelFacts:
    try:
        return folder_facts(recipe.model, folder)
    except PlanError as problem:
        raise UserError("unplannable_model", str(problem)) from problem
