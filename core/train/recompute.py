"""How many layers of the body keep only their input and are run again in the backward (Chen et al. 2016).

These are the layers nearest the input. Backward starts at the output, so by the time a layer is run again what the layers
above it had kept is gone; the other way round, its working set would come on top of all of that.
"""

from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer


def checkpoint_layers(body: nn.Module, count: int | None = None, *, random: bool = False) -> None:
    """Recompute the first ``count`` layers (None: all) in every later backward of ``body`` in training mode.

    ``random`` says that layers draw random numbers (adapters with dropout), so that the second run has to draw the same.

    Raises:
        ValueError: when the body has no layers that can be checkpointed, or fewer than ``count``.
    """
    layers = [module for module in body.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers:
        raise ValueError(f"{type(body).__name__} has no layers that can be checkpointed")
    count = len(layers) if count is None else count
    if not 0 <= count <= len(layers):
        raise ValueError(f"count must be between 0 and the body's {len(layers)} layers, got {count}")
    for place, layer in enumerate(layers):
        layer.gradient_checkpointing = place < count
        # The name that transformers' own enabling sets; the layer calls it with its forward and its inputs.
        layer._gradient_checkpointing_func = _checkpoint_random if random else _checkpoint  # type: ignore[assignment]


def _checkpoint(function: Any, *args: Any) -> Any:
    # A body without dropout draws no random numbers, so there is no state to save and set back.
    return checkpoint(function, *args, use_reentrant=False, preserve_rng_state=False)


def _checkpoint_random(function: Any, *args: Any) -> Any:
    return checkpoint(function, *args, use_reentrant=False, preserve_rng_state=True)
