"""What vLLM takes of a card: which recipes run on it, what it is asked to hold, and its share of each phase.

In training vLLM holds a second copy of the weights. On a card it sleeps during the update and then keeps its CUDA graphs
alone; on a CPU it never sleeps. Sizes are in bytes and tokens; letters as in :mod:`core.planning.memory`.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from core.recipes.catalogue import ModelFacts
from core.recipes.evaluation import EvalRecipe
from core.recipes.train import TrainRecipe

SEQUENCES = 256  # sequences that are decoded together at most
BLOCK = 16  # tokens; the cache is given out in blocks, and every sequence leaves one partly empty
PREFILL_TOKENS = 8192  # tokens of one scheduler step
GRAPHS_BYTES = 2**30  # estimate: CUDA graphs and their pool, compiled kernels, vLLM's own workspaces


@dataclass(frozen=True)
class Demand:
    """What an engine must be able to hold: its longest sequence, sequences at a time, tokens of cache in all."""

    length: int
    sequences: int
    cache_tokens: int


def runs_on_vllm(recipe: TrainRecipe | EvalRecipe) -> bool:
    """Whether the recipe's engine is vLLM; ``auto`` is, on a card."""
    return recipe.engine == "vllm" or (recipe.engine == "auto" and recipe.device.kind == "cuda")


def train_demand(recipe: TrainRecipe, tokens: int) -> Demand:
    """What rollouts and looks of ``recipe`` need where memory allows ``tokens`` of cache."""
    batches = [(recipe.prompts_per_step * recipe.num_generations, recipe.max_completion_length)]
    if recipe.looks is not None:
        batches.append((recipe.looks.batch_size, recipe.looks.max_completion_length or recipe.max_completion_length))
    return _demand(((count, recipe.max_prompt_length + length) for count, length in batches), tokens)


def eval_demand(recipe: EvalRecipe, tokens: int) -> Demand:
    """What one batch of ``recipe`` needs where memory allows ``tokens`` of cache."""
    return _demand([(recipe.batch_size, recipe.max_prompt_length + recipe.max_completion_length)], tokens)


def _demand(batches: Iterable[tuple[int, int]], tokens: int) -> Demand:
    """The most of each. Sequences that do not fit the cache wait; one of the longest must fit."""
    wanted = [(min(count, SEQUENCES), length) for count, length in batches]
    longest = max(length for _, length in wanted)
    rows = max(count for count, _ in wanted)
    cached = max(longest, min(max(count * length for count, length in wanted), tokens))
    return Demand(longest, rows, cached + BLOCK * (rows + 1))


def decoding(facts: ModelFacts, demand: Demand, width: int, kv_token_bytes: int) -> dict[str, int]:
    """vLLM's memory while it decodes, its weights aside: cache, the widest step's activations, every sequence's logits."""
    query = facts.heads * facts.head_dim
    step = max(demand.length, PREFILL_TOKENS)
    return {
        "kv_cache": demand.cache_tokens * kv_token_bytes,
        "engine_workspace": step * (3 * facts.intermediate + 2 * query + 4 * facts.hidden) * width,  # estimate
        "decode_logits": 3 * demand.sequences * facts.vocab * 4,
    }
