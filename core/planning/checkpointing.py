"""Activations of one micro-batch on a card, and the fewest checkpointed layers that a budget allows.

The layers are those of ``core.rl.lean``. Notation as in :mod:`core.planning.memory`; T tokens of the micro-batch. Per
token a kept layer holds

- w (4 H + 2 Q + 2 KV + 2 I) bytes: its input, both norms' outputs and the stream between; rotated queries and keys, values
  and attention's output; what the MLP's first two products gave;
- 4 (heads + 2): attention's log-sum-exp and the norms' scales;
- with norms on q and k, w (Q + KV) + 4 (heads + kv_heads) more.

A checkpointed layer holds its input, w H. Two moments compete for the peak. *Head*: everything is held, and one fp32 chunk of
logits, the hidden states, their gradient and the final norm's own tensors come on top. *Backward*: the layer whose turn it
is holds everything once (again, if it was checkpointed) and works with w (3 I + 3 H) per token. The checkpointed layers are
the first, so when their turn comes the kept ones above are gone.

Measured beside the prediction in ``bench/results``; a test holds the two within ten percent.
"""

from core.recipes.catalogue import ModelFacts

CUBLAS_BYTES = 96 * 2**20  # measured: library workspaces and small tensors


def kept_per_token(facts: ModelFacts, width: int) -> int:
    """Bytes per token that one layer keeps when it is not checkpointed."""
    query, key = facts.heads * facts.head_dim, facts.kv_heads * facts.head_dim
    kept = width * (4 * facts.hidden + 2 * query + 2 * key + 2 * facts.intermediate) + 4 * (facts.heads + 2)
    if facts.qk_norm:
        kept += width * (query + key) + 4 * (facts.heads + facts.kv_heads)
    return kept


def adapter_per_token(facts: ModelFacts, rank: int, width: int) -> int:
    """Bytes per token that one layer keeps on top where all its maps have adapters of ``rank``.

    The MLP's gate and product, which the last map's adapter needs, and what each of the seven A gives.
    """
    return width * (2 * facts.intermediate + 7 * rank)


def activation_bytes(
    facts: ModelFacts, *, tokens: int, chunk: int, checkpointed: int, width: int = 2, extra: int = 0
) -> int:
    """Peak above weights, gradients and optimizer of one forward and backward over ``tokens`` tokens.

    Args:
        facts: shape of the model.
        tokens: tokens of the micro-batch, padding included.
        chunk: tokens per chunk of the head.
        checkpointed: number of layers, from the input, that keep their input only.
        width: bytes per element of the weights' dtype.
        extra: bytes per token that a kept layer holds on top of :func:`kept_per_token`.

    Raises:
        ValueError: when ``checkpointed`` is not between 0 and the number of layers.
    """
    if not 0 <= checkpointed <= facts.layers:
        raise ValueError(f"checkpointed must be between 0 and {facts.layers} layers, got {checkpointed}")
    hidden, layer = tokens * facts.hidden * width, tokens * (kept_per_token(facts, width) + extra)
    work = tokens * width * (3 * facts.intermediate + 3 * facts.hidden)
    everything = checkpointed * hidden + (facts.layers - checkpointed) * layer
    # The final norm is the library's: two fp32 copies beside its output; and the gradient of the hidden states.
    head = min(chunk, tokens) * facts.vocab * 4 + tokens * facts.hidden * (8 + 2 * width)
    backward = everything + work if checkpointed < facts.layers else 0
    again = checkpointed * hidden + layer + work if checkpointed else 0
    return max(everything + head, backward, again) + CUBLAS_BYTES


def fewest_checkpointed_layers(
    facts: ModelFacts, *, tokens: int, chunk: int, available: int, width: int = 2, extra: int = 0
) -> int | None:
    """The fewest layers to checkpoint so that activations stay within ``available`` bytes; None when even all do not.

    Fewer is always faster: a checkpointed layer runs its forward twice, a quarter of its arithmetic.
    """
    for checkpointed in range(facts.layers + 1):
        needed = activation_bytes(
            facts, tokens=tokens, chunk=chunk, checkpointed=checkpointed, width=width, extra=extra
        )
        if needed <= available:
            return checkpointed
    return None
