"""Facts of the models known by name: what memory planning and the first check of a recipe need.

The numbers are those of each model's published config.json. A model that is not here can still be used from a local folder,
whose own config.json then gives the facts (`core.planning.model_facts`).
"""

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class ModelFacts:
    """Shape of one decoder. ``tied``: the head is the input embedding. ``attention_bias``: biases on q, k, v.

    With ``experts`` above 1 each MLP is so many small ones and a token passes through ``experts_used`` of them, whose widths
    together are ``intermediate``.
    """

    family: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    tied: bool
    attention_bias: bool = False
    qk_norm: bool = False
    max_positions: int | None = None
    experts: int = 1
    experts_used: int = 1

    @property
    def layer_parameters(self) -> int:
        """Parameters of one transformer layer: attention, gated MLP, two norms."""
        query = self.heads * self.head_dim
        key_value = self.kv_heads * self.head_dim
        attention = self.hidden * (2 * query + 2 * key_value)
        bias = query + 2 * key_value if self.attention_bias else 0
        norms = 2 * self.hidden + (2 * self.head_dim if self.qk_norm else 0)
        mlp = 3 * self.hidden * self.intermediate * self.experts // self.experts_used
        router = self.hidden * self.experts if self.experts > 1 else 0
        return attention + bias + mlp + router + norms

    @property
    def embedding_parameters(self) -> int:
        """Parameters of the input embedding (and of the head, when it is separate)."""
        return self.vocab * self.hidden

    @property
    def parameters(self) -> int:
        """All distinct parameters; a tied head counts once."""
        return self.layers * self.layer_parameters + self.embedding_parameters * (1 if self.tied else 2) + self.hidden


def _qwen2(
    *, layers: int, hidden: int, intermediate: int, heads: int, kv_heads: int, vocab: int, tied: bool
) -> ModelFacts:
    head_dim = hidden // heads
    return ModelFacts(
        "qwen2", layers, hidden, intermediate, heads, kv_heads, head_dim, vocab, tied, attention_bias=True
    )


def _qwen3(*, layers: int, hidden: int, intermediate: int, heads: int, tied: bool) -> ModelFacts:
    return ModelFacts("qwen3", layers, hidden, intermediate, heads, 8, 128, 151936, tied, qk_norm=True)


def _llama(
    *, layers: int, hidden: int, intermediate: int, heads: int, kv_heads: int, vocab: int, tied: bool
) -> ModelFacts:
    return ModelFacts("llama", layers, hidden, intermediate, heads, kv_heads, hidden // heads, vocab, tied)


_QWEN25 = {
    "0.5B": _qwen2(layers=24, hidden=896, intermediate=4864, heads=14, kv_heads=2, vocab=151936, tied=True),
    "1.5B": _qwen2(layers=28, hidden=1536, intermediate=8960, heads=12, kv_heads=2, vocab=151936, tied=True),
    "3B": _qwen2(layers=36, hidden=2048, intermediate=11008, heads=16, kv_heads=2, vocab=151936, tied=True),
    "7B": _qwen2(layers=28, hidden=3584, intermediate=18944, heads=28, kv_heads=4, vocab=152064, tied=False),
    "32B": _qwen2(layers=64, hidden=5120, intermediate=27648, heads=40, kv_heads=8, vocab=152064, tied=False),
}
_QWEN3 = {
    "0.6B": _qwen3(layers=28, hidden=1024, intermediate=3072, heads=16, tied=True),
    "1.7B": _qwen3(layers=28, hidden=2048, intermediate=6144, heads=16, tied=True),
    "4B": _qwen3(layers=36, hidden=2560, intermediate=9728, heads=32, tied=True),
    "8B": _qwen3(layers=36, hidden=4096, intermediate=12288, heads=32, tied=False),
}
_LLAMA32 = {
    "1B": replace(
        _llama(layers=16, hidden=2048, intermediate=8192, heads=32, kv_heads=8, vocab=128256, tied=True),
        max_positions=131072,
    ),
    "3B": replace(
        _llama(layers=28, hidden=3072, intermediate=8192, heads=24, kv_heads=8, vocab=128256, tied=True),
        max_positions=131072,
    ),
}
_SMOLLM2 = {
    "135M": replace(
        _llama(layers=30, hidden=576, intermediate=1536, heads=9, kv_heads=3, vocab=49152, tied=True),
        max_positions=8192,
    ),
    "360M": replace(
        _llama(layers=32, hidden=960, intermediate=2560, heads=15, kv_heads=5, vocab=49152, tied=True),
        max_positions=8192,
    ),
    "1.7B": replace(
        _llama(layers=24, hidden=2048, intermediate=8192, heads=32, kv_heads=32, vocab=49152, tied=True),
        max_positions=8192,
    ),
}

MODELS: dict[str, ModelFacts] = {
    "smollm2-135m": _SMOLLM2["135M"],
    **{f"HuggingFaceTB/SmolLM2-{size}-Instruct": facts for size, facts in _SMOLLM2.items()},
    **{f"Qwen/Qwen2.5-{size}": facts for size, facts in _QWEN25.items()},
    **{f"Qwen/Qwen2.5-{size}-Instruct": replace(facts, max_positions=32768) for size, facts in _QWEN25.items()},
    **{f"Qwen/Qwen2.5-Math-{size}": replace(_QWEN25[size], max_positions=4096) for size in ("1.5B", "7B")},
    **{f"Qwen/Qwen2.5-Math-{size}-Instruct": replace(_QWEN25[size], max_positions=4096) for size in ("1.5B", "7B")},
    **{f"Qwen/Qwen3-{size}": replace(facts, max_positions=40960) for size, facts in _QWEN3.items()},
    **{f"Qwen/Qwen3-{size}-Base": replace(facts, max_positions=32768) for size, facts in _QWEN3.items()},
    # 128 experts of width 768, of which a token passes through 8.
    "Qwen/Qwen3-30B-A3B": ModelFacts(
        "qwen3_moe",
        48,
        2048,
        8 * 768,
        32,
        4,
        128,
        151936,
        False,
        qk_norm=True,
        max_positions=40960,
        experts=128,
        experts_used=8,
    ),
    **{f"meta-llama/Llama-3.2-{size}": facts for size, facts in _LLAMA32.items()},
    **{f"meta-llama/Llama-3.2-{size}-Instruct": facts for size, facts in _LLAMA32.items()},
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": replace(_QWEN25["1.5B"], tied=False, max_positions=131072),
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B": replace(_QWEN25["7B"], max_positions=131072),
    "deepseek-ai/DeepSeek-R1-Distill-Llama-8B": replace(
        _llama(layers=32, hidden=4096, intermediate=14336, heads=32, kv_heads=8, vocab=128256, tied=False),
        max_positions=131072,
    ),
    # Qwen2.5-Math-1.5B's body; whether the head is stored apart is not certain here, so the larger case is planned for.
    "nvidia/OpenMath-Nemotron-1.5B": replace(_QWEN25["1.5B"], tied=False),
}
