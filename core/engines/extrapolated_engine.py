"""Output-space extrapolated decoding with ``transformers``: the reference that the vLLM class is measured against.

Two live networks of one architecture run side by side, each with its own key/value cache, and their logits are combined
before sampling. Everything else (batches, padding, sampling, stopping) is the transformers engine's own loop. Two forwards
per token make it slow; see :mod:`core.engines.extrapolated_vllm` for the fast one. It loads no weights.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache, DynamicCache, PreTrainedModel, PreTrainedTokenizerBase

from core.engines.base import EngineError
from core.engines.extrapolation import checked_alpha, combine
from core.engines.models import body_and_head
from core.engines.transformers_engine import TransformersEngine


class ExtrapolatedEngine(TransformersEngine):
    """An :class:`~core.engines.base.Engine` that samples from ``lerp(logits of a, logits of b, alpha)``.

    ``alpha`` may be set between calls; a new value is new weights as far as the record is concerned, so the version counts
    on. ``names`` (of ``a`` and ``b``) goes into :meth:`settings`. Other arguments are those of :class:`TransformersEngine`.
    """

    def __init__(
        self,
        a: PreTrainedModel,
        b: PreTrainedModel,
        alpha: float,
        tokenizer: PreTrainedTokenizerBase | None = None,
        *,
        names: Mapping[str, Any] | None = None,
        **bounds: Any,
    ) -> None:
        super().__init__(a, tokenizer, **bounds)
        self._b: PreTrainedModel | None = b
        self._b_body, self._b_head_VH, _ = body_and_head(b)
        difference = _difference(a, b, self._head_VH, self._b_head_VH)
        if difference:
            raise EngineError(f"a and b must be checkpoints of one architecture, but {difference}")
        self._layers = int(a.config.get_text_config().num_hidden_layers)
        self._alpha = torch.tensor(checked_alpha(alpha), dtype=torch.float32)
        self._names = dict(names or {})

    @property
    def alpha(self) -> float:
        """How far along the line from a (0) through b (1) the logits are taken."""
        return float(self._alpha)

    def set_alpha(self, alpha: float) -> None:
        """Use another ``alpha`` from the next call on."""
        self._alpha = torch.tensor(checked_alpha(alpha), dtype=torch.float32)
        self.update_weights()

    def settings(self) -> dict[str, Any]:
        """Those of the transformers engine, and what is extrapolated."""
        return {**super().settings(), "extrapolation": {**self._names, "alpha": self.alpha}}

    def close(self) -> None:
        """Let go of both networks."""
        super().close()
        self._b = None

    def _networks(self) -> tuple[PreTrainedModel, ...]:
        assert self._b is not None or self._model is None
        return (self._live_model(), *([self._b] if self._b is not None else []))

    def _forward(self, ids_BT: Tensor, mask_BT: Tensor, positions_BT: Tensor, cache: Cache) -> Tensor:
        """Return both networks' last hidden states side by side (B, 2 H); ``cache`` holds a's layers and then b's.

        A prefill arrives with an empty cache, which each network fills for itself. Later the layers are there, and each
        network gets its own half of them: a cache counts its tokens by its first layer, so the halves cannot be one cache.
        """
        prefill = not cache.layers
        halves = (
            (DynamicCache(), DynamicCache())
            if prefill
            else (Cache(layers=cache.layers[: self._layers]), Cache(layers=cache.layers[self._layers :]))
        )
        hidden_2BH = [
            body(
                input_ids=ids_BT,
                attention_mask=mask_BT,
                position_ids=positions_BT,
                past_key_values=half,
                use_cache=True,
            ).last_hidden_state[:, -1]
            for body, half in zip((self._body, self._b_body), halves, strict=True)
        ]
        if prefill:
            cache.layers = [*halves[0].layers, *halves[1].layers]
        return torch.cat(hidden_2BH, dim=-1)

    def _logits(self, hidden_BH: Tensor) -> Tensor:
        a_BH, b_BH = hidden_BH.chunk(2, dim=-1)
        a_BV, b_BV = nn.functional.linear(a_BH, self._head_VH), nn.functional.linear(b_BH, self._b_head_VH)
        return combine(a_BV, b_BV, self._alpha)


def _difference(a: PreTrainedModel, b: PreTrainedModel, a_head_VH: Tensor, b_head_VH: Tensor) -> str | None:
    """What keeps the logits of two models from being combined, in words."""
    if type(a) is not type(b):
        return f"they are {type(a).__name__} and {type(b).__name__}"
    if a_head_VH.shape[0] != b_head_VH.shape[0]:
        return f"their vocabularies have {a_head_VH.shape[0]} and {b_head_VH.shape[0]} tokens"
    for field in ("num_hidden_layers", "max_position_embeddings"):
        ours, theirs = (getattr(model.config.get_text_config(), field) for model in (a, b))
        if ours != theirs:
            return f"{field} is {ours} and {theirs}"
    if a_head_VH.device != b_head_VH.device or a_head_VH.dtype != b_head_VH.dtype:
        return f"they are {a_head_VH.dtype} on {a_head_VH.device} and {b_head_VH.dtype} on {b_head_VH.device}"
    return None
