"""The vLLM model of output-space extrapolation: two networks of one architecture, combined at their logits.

Both are vLLM's own model classes, built under the prefixes ``a`` and ``b``: attention layers are told apart by their prefix, so
each network has its own key/value cache and nothing in scheduling, batching or paging has to know of two. The forward
returns both networks' hidden states side by side, and :meth:`ExtrapolatedForCausalLM.compute_logits` gives each half to its own
head (tied or not, scaled or soft-capped as that family does) and combines the logits. ``alpha`` is a buffer that is read there,
outside compiled code and CUDA graphs, so it can change between two steps.

Imported by vLLM only, through :mod:`core.engines.extrapolated_plugin`. Pipeline parallelism, adapters and quantised
checkpoints are not supported.
"""

from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from vllm.compilation.decorators import support_torch_compile
from vllm.config import VllmConfig
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader
from vllm.model_executor.models.utils import init_vllm_registered_model, maybe_prefix
from vllm.sequence import IntermediateTensors

from core.engines.extrapolation import combine

FAMILIES = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM")
"""Architectures of the networks that are supported: a body, then a linear head behind ``compute_logits``."""


@support_torch_compile
class Pair(nn.Module):
    """Both networks as one unit of compilation.

    vLLM compiles the body of a model and keeps the result under a key that two bodies of one architecture share, and in
    which the names of the attention layers, hence their caches, are written down. Compiled as one, the two stay apart;
    bodies do not compile themselves when they are called inside something that is being compiled.
    """

    a: Any
    b: Any

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        config = vllm_config.model_config.hf_config.text_config
        self.a = init_vllm_registered_model(vllm_config, hf_config=config, prefix=maybe_prefix(prefix, "a"))
        self.b = init_vllm_registered_model(vllm_config, hf_config=config, prefix=maybe_prefix(prefix, "b"))

    def forward(
        self,
        input_ids: torch.Tensor | None,
        positions: torch.Tensor,
        intermediate_tensors: IntermediateTensors | None = None,
        inputs_embeds: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the final hidden states of both networks (T, 2 H), a's first."""
        a_TH = self.a(input_ids, positions, intermediate_tensors, inputs_embeds)
        b_TH = self.b(input_ids, positions, intermediate_tensors, inputs_embeds)
        return torch.cat([a_TH, b_TH], dim=-1)


class ExtrapolatedForCausalLM(nn.Module):
    """What vLLM builds for a folder whose ``architectures`` is ``DriftlineExtrapolatedForCausalLM``."""

    alpha: Tensor

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        config = vllm_config.model_config.hf_config.text_config
        if not set(config.architectures or ()) <= set(FAMILIES) or not config.architectures:
            raise ValueError(f"{config.architectures} cannot be extrapolated; supported: {', '.join(FAMILIES)}")
        # Not below `prefix`, which is empty for a whole model: the layers are a.model.layers.0... and b.model.layers.0...
        self.pair = Pair(vllm_config=vllm_config, prefix=prefix)
        self.register_buffer("alpha", torch.ones((), dtype=torch.float32))
        folder = Path(vllm_config.model_config.model)
        # Read by vLLM's loader after the folder's own weights (alpha), each under its prefix.
        self.secondary_weights = [
            DefaultModelLoader.Source(str(folder / side), revision=None, prefix=f"{side}.") for side in ("a", "b")
        ]

    def embed_input_ids(self, input_ids: Tensor) -> Tensor:
        """Refused: the networks embed for themselves, and one embedding cannot stand for both."""
        raise ValueError("two networks have two input embeddings; give token ids")

    def forward(
        self,
        input_ids: Tensor | None,
        positions: Tensor,
        intermediate_tensors: IntermediateTensors | None = None,
        inputs_embeds: Tensor | None = None,
        **_: Any,
    ) -> Tensor:
        """Return the final hidden states of both networks side by side (T, 2 H)."""
        if inputs_embeds is not None:
            raise ValueError("extrapolated decoding takes token ids, not embeddings")
        both_T2H: Tensor = self.pair(input_ids, positions, intermediate_tensors, inputs_embeds)
        return both_T2H

    def compute_logits(self, hidden_states: Tensor) -> Tensor | None:
        """Combine the logits (T, V, fp32) of both networks from their hidden states (T, 2 H)."""
        a_TH, b_TH = hidden_states.chunk(2, dim=-1)
        a_TV, b_TV = self.pair.a.compute_logits(a_TH.contiguous()), self.pair.b.compute_logits(b_TH.contiguous())
        if a_TV is None or b_TV is None:  # a rank that does not sample
            return None
        return combine(a_TV, b_TV, self.alpha)

    def set_alpha(self, alpha: float) -> None:
        """Use another ``alpha`` from the next step on. Keys and values do not depend on it, so caches stay right."""
        self.alpha.fill_(alpha)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Load ``alpha``, ``a.NAME`` and ``b.NAME``, where NAME is the name in the network's own checkpoint.

        Returns the names of this model's tensors that were set. Raises ``ValueError`` for any other name.
        """
        loaded: set[str] = set()
        for part, group in groupby(weights, key=lambda named: named[0].partition(".")[0]):
            match part:
                case "alpha":
                    for _, tensor in group:
                        self.alpha.copy_(tensor)
                    loaded.add("alpha")
                case "a" | "b":
                    network = getattr(self.pair, part)
                    inner = network.load_weights((name.partition(".")[2], tensor) for name, tensor in group)
                    loaded |= {f"pair.{part}.{name}" for name in inner}
                case _:
                    raise ValueError(f"a combined checkpoint holds alpha, a.* and b.*, not {part!r}")
        return loaded


class AlphaExtension:
    """Added to vLLM's worker (``worker_extension_cls``), so that an engine in another process can be told of a new alpha."""

    def set_extrapolation_alpha(self, alpha: float) -> float:
        """Set the model's alpha and return the value that it has now."""
        model: Any = self.get_model()  # type: ignore[attr-defined]
        model.set_alpha(alpha)
        return float(model.alpha)
