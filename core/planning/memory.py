"""Memory of one run by component and phase, in bytes.

Notation: P parameters, L layers, H hidden, I intermediate, Q = heads x head_dim, KV = kv_heads x head_dim, V vocabulary,
w bytes per element of the weights' dtype (4 or 2), T padded tokens of a micro-batch.

A run's phases follow each other, so the peak is what always exists plus the largest phase. Exact by construction: weights,
reference, gradients, masters, moments, the key/value cache. What layers keep for their backward is counted on a CPU for the
eager code of transformers 5 with fused attention and on a card for the lean layers (:mod:`core.planning.checkpointing`);
tests count the saved tensors of both. Estimates, and named so: the working set of one layer's backward, the temporaries of
the optimizer, the process and the CUDA context, the allocator's slack.
"""

from dataclasses import dataclass, field

from core.planning.checkpointing import activation_bytes, adapter_per_token
from core.planning.engine import GRAPHS_BYTES, decoding, eval_demand, runs_on_vllm, train_demand
from core.recipes.catalogue import ModelFacts
from core.recipes.evaluation import EvalRecipe
from core.recipes.train import Lora, Optimizer, TrainRecipe

GIB = 2**30
PROCESS_BYTES = int(0.6 * GIB)  # estimate: Python, torch and transformers loaded, tokenizer, thread pools
CUDA_CONTEXT_BYTES = int(0.7 * GIB)  # estimate: context, cuBLAS workspaces
ALLOCATOR_SLACK = 0.05  # estimate: share of the phase's memory lost to the caching allocator's blocks
HOST_BYTES = 2 * GIB  # estimate: host side of a CUDA process

# Of adamw_offload and adamw_8bit on the card during a step; tests hold them to core.rl's own.
OFFLOAD_STAGING_BYTES = 10 * 4 * 2**24
EIGHTBIT_WORKSPACE_BYTES = 64 * 2**22

ROLLOUT_ROWS = 64  # sequences that are decoded together at most
ROLLOUT_TOKENS = 131_072  # and their padded tokens, where memory allows as many


@dataclass(frozen=True)
class Memory:
    """Bytes on the card (the host for a CPU run): what always exists, and each phase's own.

    ``host`` is what a run on a card takes of the host's memory, of which ``pinned`` bytes are page-locked.
    """

    static: dict[str, int]
    phases: dict[str, dict[str, int]]
    pinned: int = 0
    host: int = field(default=0)

    @property
    def peak(self) -> int:
        """What always exists plus the largest phase."""
        return sum(self.static.values()) + max(sum(phase.values()) for phase in self.phases.values())

    @property
    def allocated(self) -> int:
        """The part of the peak that torch's allocator hands out, which the curve ``memory/peak_gib`` records on a card.

        Without the CUDA context, the allocator's unused blocks and what vLLM holds outside torch's counting.
        """
        outside = {"cuda_context", "allocator_slack", "engine_graphs"}
        always = sum(size for name, size in self.static.items() if name not in outside)
        return always + max(
            sum(size for name, size in phase.items() if name not in outside) for phase in self.phases.values()
        )


def element_bytes(dtype: str) -> int:
    """Bytes per element of ``float32`` or ``bfloat16``."""
    return 4 if dtype == "float32" else 2


def kv_bytes_per_token(facts: ModelFacts, width: int) -> int:
    """Key and value of one token in every layer: 2 L KV w."""
    return 2 * facts.layers * facts.kv_heads * facts.head_dim * width


def saved_per_layer(facts: ModelFacts, tokens: int, row: int, width: int) -> int:
    """What one layer keeps for its backward, for ``tokens`` padded tokens in rows of ``row`` tokens.

    Per token: H (8 + 4w) for the two norms (float32 inside) and the residual stream, 4 I w for the gated MLP, 4 Q w + 4 heads
    for fused attention, w per key of the row for the attention mask, 8 for the norms' scales; with norms on q and k also
    (Q + KV)(4 + w) + 4 (heads + kv_heads).
    """
    query, key = facts.heads * facts.head_dim, facts.kv_heads * facts.head_dim
    per_token = facts.hidden * (8 + 4 * width) + 4 * facts.intermediate * width + 4 * query * width
    per_token += 4 * facts.heads + row * width + 8
    if facts.qk_norm:
        per_token += (query + key) * (4 + width) + 4 * (facts.heads + facts.kv_heads)
    return tokens * per_token


def train_memory(
    recipe: TrainRecipe,
    facts: ModelFacts,
    micro_tokens: int,
    rollout_tokens: int = ROLLOUT_TOKENS,
    layers: int | None = None,
) -> Memory:
    """Memory of a train run with ``micro_tokens`` padded tokens a micro-batch and ``rollout_tokens`` a decoding batch.

    On a card ``layers`` layers are checkpointed (None: all); on a CPU none ever is.
    """
    width = element_bytes(recipe.dtype)
    cuda = recipe.device.kind == "cuda"
    static, pinned = _train_static(recipe, facts, width)
    rollout = _rollout(recipe, facts, width, rollout_tokens)
    if cuda:
        phases = {
            "rollout": rollout,
            "score": _score(recipe, facts, micro_tokens, width),
            "backward": {"activations": _activations(recipe, facts, micro_tokens, width, layers)},
            "step": {"optimizer_workspace": _step_workspace(recipe, facts)},
        }
    else:
        update = _backward(recipe, facts, micro_tokens, width)
        step = {"optimizer_workspace": 3 * 4 * facts.embedding_parameters}
        phases = {"rollout": rollout, "backward": update, "step": step}
    host = HOST_BYTES + pinned + 8 * facts.parameters  # one file's tensors pass through host memory
    if runs_on_vllm(recipe):
        static |= _engine_static(rollout, cuda)
        host += facts.parameters * width  # the sleeping engine's weights
    if cuda:
        phases = {name: _with_slack(phase) for name, phase in phases.items()}
    return Memory(static, phases, pinned, host if cuda else 0)


def adapter_extra(recipe: TrainRecipe, facts: ModelFacts, width: int) -> int:
    """Bytes per token and kept layer that adapters add."""
    return 0 if recipe.lora is None else adapter_per_token(facts, recipe.lora.r, width)


def decoded_bytes(recipe: TrainRecipe, facts: ModelFacts) -> int:
    """The largest map's weight, decoded from four bits while it is used, forward and backward."""
    if recipe.lora is None or recipe.lora.quantize == "none":
        return 0
    return 2 * facts.hidden * facts.intermediate * element_bytes(recipe.dtype)


def _activations(recipe: TrainRecipe, facts: ModelFacts, tokens: int, width: int, layers: int | None) -> int:
    checkpointed = facts.layers if layers is None else layers
    return decoded_bytes(recipe, facts) + activation_bytes(
        facts,
        tokens=tokens,
        chunk=recipe.logit_chunk_tokens,
        checkpointed=checkpointed,
        width=width,
        extra=adapter_extra(recipe, facts, width),
    )


def _score(recipe: TrainRecipe, facts: ModelFacts, tokens: int, width: int) -> dict[str, int]:
    """Log-probs of the frozen start model, which comes over from the host for this phase alone; no layer keeps anything."""
    query = facts.heads * facts.head_dim
    return {
        "reference": facts.parameters * width if recipe.lora is None else 0,
        "score_workspace": tokens * (3 * facts.intermediate + 2 * query + 4 * facts.hidden) * width  # estimate
        + min(recipe.logit_chunk_tokens, tokens) * facts.vocab * 4,
    }


def _step_workspace(recipe: TrainRecipe, facts: ModelFacts) -> int:
    """Temporaries of the update: the largest gradient in fp32, for its norm and its step, and the optimizer's own."""
    largest = max(facts.embedding_parameters, facts.hidden * facts.intermediate)
    if recipe.lora is not None:
        largest = max(facts.hidden, facts.intermediate) * recipe.lora.r
    match recipe.optimizer.name:
        case "adamw_offload":
            return 4 * largest + OFFLOAD_STAGING_BYTES
        case "adamw_8bit":
            return 4 * largest + EIGHTBIT_WORKSPACE_BYTES
        case _:
            return 2 * 4 * largest


def _engine_static(rollout: dict[str, int], cuda: bool) -> dict[str, int]:
    """What vLLM keeps through every phase; on a CPU, where it never sleeps, ``rollout`` is left without it."""
    return (
        {"engine_graphs": GRAPHS_BYTES}
        if cuda
        else {name: rollout.pop(name) for name in ("engine_weights", "kv_cache")}
    )


def eval_memory(recipe: EvalRecipe, facts: ModelFacts, rollout_tokens: int = ROLLOUT_TOKENS) -> Memory:
    """Memory of an eval run: the weights and one batch; of an extrapolation, the weights and caches of both networks."""
    width = element_bytes(recipe.dtype)
    cuda = recipe.device.kind == "cuda"
    static = {"weights": recipe.networks * facts.parameters * width, **_process(cuda)}
    length = recipe.max_prompt_length + recipe.max_completion_length
    phase = _decoding(facts, recipe.batch_size, length, width, rollout_tokens)
    if runs_on_vllm(recipe):
        phase = decoding(facts, eval_demand(recipe, rollout_tokens), width, kv_bytes_per_token(facts, width))
    phase = {**phase, "kv_cache": recipe.networks * phase["kv_cache"]}
    if runs_on_vllm(recipe):
        static |= {"engine_graphs": GRAPHS_BYTES} if cuda else {}
    return Memory(static, {"generation": _with_slack(phase) if cuda else phase}, 0, HOST_BYTES if cuda else 0)


def adapter_parameters(facts: ModelFacts, lora: Lora) -> int:
    """Parameters of adapters of rank r on the targeted linear maps of every layer: r (in + out) each."""
    query, key = facts.heads * facts.head_dim, facts.kv_heads * facts.head_dim
    ends = {
        "q_proj": facts.hidden + query,
        "k_proj": facts.hidden + key,
        "v_proj": facts.hidden + key,
        "o_proj": facts.hidden + query,
        "gate_proj": facts.hidden + facts.intermediate,
        "up_proj": facts.hidden + facts.intermediate,
        "down_proj": facts.hidden + facts.intermediate,
    }
    chosen = ends.values() if lora.targets == ("all-linear",) else [ends[name] for name in lora.targets]
    return facts.layers * lora.r * sum(chosen)


def moment_bytes(optimizer: Optimizer, parameters: int) -> int:
    """Optimizer moments: two in fp32; two in 8 bit with one fp32 scale per block of 256; sgd's buffer with momentum."""
    match optimizer.name:
        case "adamw" | "adamw_offload":
            return 8 * parameters
        case "adamw_8bit":
            return 2 * parameters + 2 * 4 * -(-parameters // 256)
        case "sgd":
            return 4 * parameters if optimizer.momentum else 0


def _train_static(recipe: TrainRecipe, facts: ModelFacts, width: int) -> tuple[dict[str, int], int]:
    """What always exists, and the page-locked host memory: masters and moments that are offloaded, the resting reference."""
    lora, cuda = recipe.lora, recipe.device.kind == "cuda"
    trained = facts.parameters if lora is None else adapter_parameters(facts, lora)
    weights = facts.parameters * width
    if lora is not None:
        # nf4: half a byte and a scale per 64 elements for the layers; embeddings and head keep the dtype.
        layers = facts.layers * facts.layer_parameters
        weights = weights if lora.quantize == "none" else (facts.parameters - layers) * width + layers * 9 // 16
        weights += trained * width
    masters = 0 if width == 4 else 4 * trained
    moments = moment_bytes(recipe.optimizer, trained)
    # The frozen start model is kept for the KL curve; with adapters it is the model with the adapters left out.
    reference = facts.parameters * width if lora is None else 0
    offloaded = cuda and recipe.optimizer.name == "adamw_offload"
    static = {
        "weights": weights,
        "gradients": trained * width,
        "masters": 0 if offloaded else masters,
        "moments": 0 if offloaded else moments,
        **({} if cuda else {"reference": reference}),
        **_process(cuda),
    }
    # Offloaded masters are host tensors whatever the weights' dtype.
    return static, ((4 * trained + moments if offloaded else 0) + reference) if cuda else 0


def _process(cuda: bool) -> dict[str, int]:
    return {"cuda_context": CUDA_CONTEXT_BYTES} if cuda else {"process": PROCESS_BYTES}


def _with_slack(phase: dict[str, int]) -> dict[str, int]:
    return {**phase, "allocator_slack": int(ALLOCATOR_SLACK * sum(phase.values()))}


def _backward(recipe: TrainRecipe, facts: ModelFacts, tokens: int, width: int) -> dict[str, int]:
    """Activations of one micro-batch on a CPU, where every layer keeps all it needs."""
    row = min(tokens, recipe.max_prompt_length + recipe.max_completion_length)
    layer = saved_per_layer(facts, tokens, row, width)
    inputs = tokens * facts.hidden * width
    activations = facts.layers * (layer + tokens * adapter_extra(recipe, facts, width))
    query = facts.heads * facts.head_dim
    return {
        "activations": activations,
        "backward_workspace": tokens * (3 * facts.intermediate + 2 * query + 4 * facts.hidden) * width,  # estimate
        "hidden_states": 3 * inputs,  # the final norm's output, the chunked head's copy, its gradient
        "logit_chunk": 3 * recipe.logit_chunk_tokens * facts.vocab * 4,
    }


def _rollout(recipe: TrainRecipe, facts: ModelFacts, width: int, tokens: int) -> dict[str, int]:
    if runs_on_vllm(recipe):
        phase = decoding(facts, train_demand(recipe, tokens), width, kv_bytes_per_token(facts, width))
        return {"engine_weights": width * facts.parameters, **phase}
    samples = recipe.prompts_per_step * recipe.num_generations
    phase = _decoding(facts, samples, recipe.max_prompt_length + recipe.max_completion_length, width, tokens)
    if recipe.looks is not None:
        length = recipe.max_prompt_length + (recipe.looks.max_completion_length or recipe.max_completion_length)
        look = _decoding(facts, recipe.looks.batch_size, length, width, tokens)
        phase = max(phase, look, key=lambda components: sum(components.values()))
    return phase


def _decoding(facts: ModelFacts, samples: int, length: int, width: int, tokens: int) -> dict[str, int]:
    """One batch of the engine: its cache to the last token, and the last position's logits in fp32 with two temporaries."""
    rows = max(1, min(samples, ROLLOUT_ROWS, tokens // length))
    return {
        "kv_cache": rows * length * kv_bytes_per_token(facts, width),
        "decode_logits": 3 * rows * facts.vocab * 4,
    }
