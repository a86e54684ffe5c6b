"""The memory of an analysis: a few chunks of files for what reads weights, and one model for what runs it.

Batch sizes and chunks are those of :mod:`core.dynamics`, which is not imported: plans are made without torch.
"""

from core.planning.memory import PROCESS_BYTES, Memory
from core.recipes.analysis import AnalysisRecipe, ComputeSpec
from core.recipes.models import ModelFacts

_CHUNKS = 4 * (6 << 20)
_HELD = 3 * 4 * (2 << 20)
_PIECES = 16 << 20
_BATCH_TOKENS = 16_384
_HEAD_CHUNK = 1024
_GRADIENT_TOKENS = 2048
_COORDINATES = 1 << 22
_STATES_PER_LAYER = 16
"""Numbers of hidden size that autograd keeps per token and layer without recomputation, beside the feed-forward's three."""


def analysis_memory(recipe: AnalysisRecipe, facts: ModelFacts) -> Memory:
    """Return the components of every analysis of ``recipe``; they run one after another, so the largest counts."""
    return Memory({"process": PROCESS_BYTES}, {str(at): _phase(spec, facts) for at, spec in enumerate(recipe.compute)})


def _phase(spec: ComputeSpec, facts: ModelFacts) -> dict[str, int]:
    size = 4 if spec.dtype == "float32" else 2
    match spec.name:
        case "weight_linearity":
            return _streaming()
        case "gradient_noise":
            per_layer = _STATES_PER_LAYER * facts.hidden + 3 * facts.intermediate
            return _streaming() | {
                "model": 4 * facts.parameters,
                "gradients": 4 * facts.parameters,
                "group_gradients": (spec.groups + 1) * 3 * 4 * min(_COORDINATES, facts.parameters),
                "activations": 4 * _GRADIENT_TOKENS * facts.layers * per_layer,
                "logit_chunk": 3 * 512 * facts.vocab * 4,
            }
        case "first_order":
            models = {"models": 2 * size * facts.parameters}
        case _:
            models = {"model": size * facts.parameters}
    forward = _BATCH_TOKENS * (6 * facts.hidden + 3 * facts.intermediate)
    return models | {"forward": size * forward, "logit_chunk": 3 * _HEAD_CHUNK * facts.vocab * 4}


def _streaming() -> dict[str, int]:
    return {"chunks": _CHUNKS, "changes": _HELD, "sums": _PIECES}
