"""Opening an engine on two checkpoints: the transformers reference, or vLLM on a combined folder, behind one protocol.

Either way ``alpha`` can be changed while the engine is open, so a sweep loads the weights once. What is asked at which alpha
is the caller's business.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from transformers import PreTrainedTokenizerBase

from core.engines.base import Engine
from core.engines.extrapolated_engine import ExtrapolatedEngine
from core.engines.extrapolated_folder import check_pair, write_combined
from core.engines.extrapolation import checked_alpha
from core.engines.models import load_model, load_tokenizer, stop_token_ids
from core.engines.opening import EngineName, Sizes, folder_stop_token_ids
from core.engines.references import ModelSource
from core.engines.vllm_engine import VllmEngine
from core.engines.vllm_launch import OVERHEAD_BYTES, EngineDiedError, VllmOptions, check_length

_EXTENSION = "core.engines.extrapolated_vllm.AlphaExtension"


class LineEngine(Engine, Protocol):
    """An engine that samples from the line through two checkpoints' logits."""

    def set_alpha(self, alpha: float) -> None:
        """Sample at another place of the line from the next call on."""
        ...


class ExtrapolatedVllmEngine(VllmEngine):
    """vLLM on a combined folder (:mod:`core.engines.extrapolated_folder`); ``names`` goes into :meth:`settings`.

    Raises what :class:`VllmEngine` raises.
    """

    def __init__(
        self,
        folder: Path,
        options: VllmOptions,
        alpha: float,
        *,
        names: Mapping[str, Any] | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        check_length(folder / "b", options.max_model_len)
        super().__init__(
            folder, options, extra={"worker_extension_cls": _EXTENSION, **_memory(folder, options), **dict(extra or {})}
        )
        self._names = dict(names or {})
        self._alpha = checked_alpha(alpha)
        self._tell()

    def set_alpha(self, alpha: float) -> None:
        """Use another ``alpha`` from the next call on. No cache is dropped: keys and values do not depend on it."""
        self._alpha = checked_alpha(alpha)
        self._tell()
        self._weights_version += 1

    def settings(self) -> dict[str, Any]:
        """Those of the vLLM engine, and what is extrapolated."""
        return {**super().settings(), "extrapolation": {**self._names, "alpha": self._alpha}}

    def _tell(self) -> None:
        has = self._open_llm().collective_rpc("set_extrapolation_alpha", args=(self._alpha,))
        wanted = float(torch.tensor(self._alpha, dtype=torch.float32))
        if any(value != wanted for value in has):
            raise EngineDiedError(f"vLLM was told of alpha {self._alpha} and has {has}")


@dataclass(frozen=True)
class ServedLine:
    """An engine on two checkpoints, with the later one's tokenizer and the tokens that end its completions."""

    engine: LineEngine
    tokenizer: PreTrainedTokenizerBase
    stop_token_ids: tuple[int, ...]


def open_line(
    name: EngineName,
    a: ModelSource,
    b: ModelSource,
    alpha: float,
    *,
    dtype: torch.dtype,
    device: torch.device,
    sizes: Sizes,
    scratch: Path,
) -> ServedLine:
    """Open an engine on the line from ``a`` through ``b``; vLLM's combined folder is written below ``scratch``.

    Raises :class:`~core.engines.models.ModelError` when the two do not fit each other, else what opening one folder raises.
    """
    tokenizer = load_tokenizer(b.folder)
    names = {"a": a.reference, "a_sha256": a.sha256, "b": b.reference, "b_sha256": b.sha256}
    if name == "transformers":
        check_pair(a.folder, b.folder)
        first, second = (load_model(side.folder, dtype, device) for side in (a, b))
        engine = ExtrapolatedEngine(
            first,
            second,
            alpha,
            tokenizer,
            names=names,
            max_model_len=sizes.max_model_len,
            max_batch_size=sizes.max_num_seqs,
            max_batch_tokens=sizes.batch_tokens,
        )
        return ServedLine(engine, tokenizer, stop_token_ids(second, tokenizer))
    folder = scratch / "combined"
    write_combined(folder, a, b, alpha)
    cuda = device.type == "cuda"
    options = VllmOptions(
        max_model_len=sizes.max_model_len,
        max_num_seqs=sizes.max_num_seqs,
        kv_cache_bytes=sizes.kv_cache_bytes,
        dtype=str(dtype).removeprefix("torch."),
        device=device.type,
        in_process=not cuda,
        enforce_eager=not cuda,
    )
    served = ExtrapolatedVllmEngine(folder, options, alpha, names=names)
    return ServedLine(served, tokenizer, folder_stop_token_ids(b.folder, tokenizer))


def _memory(folder: Path, options: VllmOptions) -> dict[str, float]:
    """vLLM's share of the card: the weights of both networks lie one folder deeper than those of an ordinary model."""
    if options.device != "cuda":
        return {}
    weights = sum(file.stat().st_size for file in folder.glob("[ab]/*.safetensors"))
    total = torch.cuda.get_device_properties(0).total_memory
    return {"gpu_memory_utilization": min(0.95, max(0.02, (weights + options.kv_cache_bytes + OVERHEAD_BYTES) / total))}
