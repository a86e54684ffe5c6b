"""What each layer of the body keeps for its backward, and what it computes again.

Three ways, from least memory to least time:

- *full*: keep the layer's input, run the whole layer again (Chen et al. 2016).
- *light*: also keep what matrix products and attention gave, run only norms, rotations, activations and sums again. These
  are a small part of the arithmetic and half of what autograd would keep (the idea of Megatron's selective recomputation,
  Korthikanti et al. 2022, with the parts exchanged: fused attention keeps little, so it is kept).
- *none*: keep everything.

The layers nearest the input are the full ones. Backward starts at the output, so by the time a full layer is run again the
kept tensors of those above it are gone; the other way round, its working set would come on top of them.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts
from transformers.modeling_layers import GradientCheckpointingLayer

_ATEN = torch.ops.aten
_ATTENTION = frozenset(
    {
        _ATEN._scaled_dot_product_flash_attention.default,
        _ATEN._scaled_dot_product_efficient_attention.default,
        _ATEN._scaled_dot_product_cudnn_attention.default,
        _ATEN._scaled_dot_product_flash_attention_for_cpu.default,
    }
)


@dataclass(frozen=True)
class Recompute:
    """Numbers of layers, counted from the input: first ``full`` ones, then ``light`` ones; the rest keep everything."""

    full: int
    light: int = 0

    def check(self, layers: int) -> None:
        """Raise ValueError unless the counts fit ``layers``."""
        if self.full < 0 or self.light < 0 or self.full + self.light > layers:
            raise ValueError(
                f"full and light must be 0 or more and sum to at most {layers} layers, got {self.full} and {self.light}"
            )


def apply(body: nn.Module, recompute: Recompute) -> None:
    """Set how each layer of ``body`` is kept; holds for every later forward in training mode.

    Raises:
        ValueError: when the body has no layers that can be checkpointed, or fewer than asked for.
    """
    layers = [module for module in body.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers:
        raise ValueError(f"{type(body).__name__} has no layers that can be checkpointed")
    recompute.check(len(layers))
    width = int(getattr(getattr(body, "config", None), "intermediate_size", 0))
    light = partial(_checkpoint, context_fn=partial(create_selective_checkpoint_contexts, partial(_kept, width)))
    for place, layer in enumerate(layers):
        layer.gradient_checkpointing = place < recompute.full + recompute.light
        # The name that transformers' own enabling sets; the layer calls it with its forward and its inputs.
        layer._gradient_checkpointing_func = _checkpoint if place < recompute.full else light  # type: ignore[assignment]


def _checkpoint(function: Any, *args: Any, **options: Any) -> Any:
    # Nothing in a body that is trained here draws random numbers, so there is no state to save and set back.
    return checkpoint(function, *args, use_reentrant=False, preserve_rng_state=False, **options)


def _kept(width: int, context: Any, operation: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    """Keep attention and products, except those of inputs of the MLP's inner ``width``.

    That product is the layer's last: no gradient needs what it gives, and recomputation stops before it is reached.
    """
    if operation in _ATTENTION:
        return CheckpointPolicy.MUST_SAVE
    if operation in (_ATEN.mm.default, _ATEN.addmm.default) and args[-2].shape[-1] != width:
        return CheckpointPolicy.MUST_SAVE
    return CheckpointPolicy.PREFER_RECOMPUTE
