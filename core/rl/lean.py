"""Runs the layers of known decoder families by :mod:`core.rl.blocks`: the same function, fewer kernels, half the memory kept.

transformers' eager layers launch about forty kernels forward and keep a hundred bytes per token and hidden unit. The layers
of Llama, Qwen2 and Qwen3 are the same few operations, so one function can stand in for all three. It stands in where no
cache and no mask is used: training and scoring. Generation keeps the library's own forward, whose weights are the same.
Linear maps with adapters, or stored in four bits, are called as they are.

Other families and anything unusual in a known one (dropout, biases in the MLP, another activation) are left as they are.

The only module of this package that knows more than tensors: the attribute names of three families of layers. It lives here
because training and analysis both use it, and neither may import the other's helpers; it imports no transformers.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from core.rl import blocks

_FAMILIES = frozenset({"LlamaDecoderLayer", "Qwen2DecoderLayer", "Qwen3DecoderLayer"})


def make_lean(body: nn.Module) -> int:
    """Let the known layers of ``body`` run lean from now on; return how many that are."""
    layers = [module for module in body.modules() if _known(module)]
    for layer in layers:
        layer.forward = _Lean(layer)
    return len(layers)


@contextmanager
def lean_layers(body: nn.Module) -> Iterator[int]:
    """Do what :func:`make_lean` does for the length of a block.

    A lean layer and its forward hold each other, so without the end of the block a model that nobody names any more stays in
    memory until Python looks for cycles.
    """
    try:
        yield make_lean(body)
    finally:
        for module in body.modules():
            forward = module.__dict__.get("forward")
            if isinstance(forward, _Lean):
                forward.step_aside()


def _known(module: Any) -> bool:
    if type(module).__name__ not in _FAMILIES:
        return False
    maps = [module.mlp.gate_proj, module.mlp.up_proj, module.mlp.down_proj]
    return (
        all(getattr(part, "base_layer", part).bias is None for part in maps)
        and module.mlp.config.hidden_act == "silu"
        and not module.self_attn.attention_dropout
    )


class _Lean:
    """The forward of one layer. Holds the module's own forward for calls with a cache or a mask."""

    def __init__(self, layer: Any) -> None:
        self._layer = layer
        self._own = layer.forward
        self._was_set = "forward" in layer.__dict__

    def step_aside(self) -> None:
        """Give the layer the forward back that it had before."""
        if self._was_set:
            self._layer.forward = self._own
        else:
            del self._layer.forward

    def __call__(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        **kwargs: Any,
    ) -> Any:
        if attention_mask is not None or past_key_values is not None or position_embeddings is None:
            return self._own(
                hidden_states,
                attention_mask=attention_mask,
                past_key_values=past_key_values,
                position_embeddings=position_embeddings,
                **kwargs,
            )
        layer = self._layer
        first, second, mlp = layer.input_layernorm, layer.post_attention_layernorm, layer.mlp
        normed = blocks.rms_norm(hidden_states, first.weight, first.variance_epsilon)
        attended = _attention(layer.self_attn, normed, *position_embeddings)
        residual, normed = blocks.add_rms_norm(hidden_states, attended, second.weight, second.variance_epsilon)
        gate, up = mlp.gate_proj(normed), mlp.up_proj(normed)
        if type(mlp.down_proj) is nn.Linear:
            return residual + blocks.gated_down(gate, up, mlp.down_proj.weight)
        return residual + mlp.down_proj(functional.silu(gate) * up)


def _attention(attention: Any, normed_BSH: Tensor, cos_BSd: Tensor, sin_BSd: Tensor) -> Tensor:
    """Causal self-attention without mask: right-padded rows need none."""

    def heads(projection: nn.Module, norm: Any) -> Tensor:
        x_BSNd = projection(normed_BSH).unflatten(-1, (-1, attention.head_dim))
        return x_BSNd if norm is None else blocks.rms_norm(x_BSNd, norm.weight, norm.variance_epsilon)

    query = blocks.rotate(heads(attention.q_proj, getattr(attention, "q_norm", None)), cos_BSd, sin_BSd)
    key = blocks.rotate(heads(attention.k_proj, getattr(attention, "k_norm", None)), cos_BSd, sin_BSd)
    value = heads(attention.v_proj, None)
    out_BNSd = functional.scaled_dot_product_attention(
        query.transpose(1, 2),
        key.transpose(1, 2),
        value.transpose(1, 2),
        is_causal=True,
        scale=attention.scaling,
        enable_gqa=True,
    )
    out: Tensor = attention.o_proj(out_BNSd.transpose(1, 2).flatten(2))
    return out
