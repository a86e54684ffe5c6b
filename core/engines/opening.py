"""Choosing an engine and opening it: for a trainer's live model, or for a folder of weights that is evaluated.

``auto`` is vLLM on a card where it is installed and transformers everywhere else. Which it was is in the engine's settings.
The sizes come from the memory plan; this module decides no sizes, knows no runs, and imports vLLM only to start it.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from transformers import AutoConfig, GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from core.engines.base import Engine
from core.engines.models import load_model, load_tokenizer, named_weights, stop_token_ids
from core.engines.transformers_engine import TransformersEngine
from core.engines.vllm_engine import VllmEngine, Weights
from core.engines.vllm_launch import EngineUnavailableError, VllmOptions, vllm_version

EngineName = Literal["transformers", "vllm"]


@dataclass(frozen=True)
class Sizes:
    """What an engine is opened for: the longest sequence, sequences at a time, the memory that was planned for them.

    ``batch_tokens`` bounds the padded tokens of a transformers batch, ``kv_cache_bytes`` is the size of vLLM's cache.
    """

    max_model_len: int
    max_num_seqs: int
    batch_tokens: int
    kv_cache_bytes: int


@dataclass(frozen=True)
class Served:
    """An engine on a folder of weights, with that folder's tokenizer and the tokens that end its completions."""

    engine: Engine
    tokenizer: PreTrainedTokenizerBase
    stop_token_ids: tuple[int, ...]


def choose_engine(asked: str, device: str) -> EngineName:
    """Return the engine that ``auto``, ``transformers`` or ``vllm`` means on ``device`` (cuda or cpu) here.

    Raises :class:`EngineUnavailableError` when vLLM is asked for by name and is not installed.
    """
    installed = vllm_version() is not None
    if asked == "vllm" and not installed:
        raise EngineUnavailableError(
            "vLLM is not installed on this worker; install Driftline's extra gpu (on a card) or cpu-engine, "
            "or set engine to transformers or auto"
        )
    if asked == "auto":
        return "vllm" if installed and device == "cuda" else "transformers"
    return "vllm" if asked == "vllm" else "transformers"


def open_live(
    name: EngineName,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    sizes: Sizes,
    *,
    weights: Weights | None = None,
) -> Engine:
    """Open an engine on the model that is being trained, which holds the weights of ``folder``.

    transformers reads the module itself; vLLM holds a copy in this process that takes the module's weights at every
    ``update_weights``, and sleeps in between on a card. ``weights`` gives what vLLM is to serve, by the names of the folder's
    files, where that is not simply the module's own. Raises :class:`~core.engines.base.EngineError`.
    """
    if name == "transformers":
        return TransformersEngine(
            model, tokenizer, max_model_len=sizes.max_model_len, max_batch_tokens=sizes.batch_tokens
        )
    cuda = model.device.type == "cuda"
    options = _options(sizes, dtype=model.dtype, cuda=cuda, in_process=True, sleeps=cuda)
    return VllmEngine(folder, options, live=weights or (lambda: named_weights(model)))


def open_folder(name: EngineName, folder: Path, dtype: torch.dtype, device: torch.device, sizes: Sizes) -> Served:
    """Open an engine on the weights of ``folder``; closing it frees them. Raises :class:`~core.engines.base.EngineError`.

    On a card vLLM runs as a child process, so that nothing of it is left when the next model is opened.
    """
    tokenizer = load_tokenizer(folder)
    if name == "transformers":
        model = load_model(folder, dtype, device)
        engine = TransformersEngine(
            model,
            tokenizer,
            max_model_len=sizes.max_model_len,
            max_batch_size=sizes.max_num_seqs,
            max_batch_tokens=sizes.batch_tokens,
        )
        return Served(engine, tokenizer, stop_token_ids(model, tokenizer))
    cuda = device.type == "cuda"
    options = _options(sizes, dtype=dtype, cuda=cuda, in_process=not cuda, sleeps=False)
    return Served(VllmEngine(folder, options), tokenizer, folder_stop_token_ids(folder, tokenizer))


def folder_stop_token_ids(folder: Path, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """What :func:`~core.engines.models.stop_token_ids` gives for the model of a folder, without loading its weights."""
    if (folder / "generation_config.json").is_file():
        generation = GenerationConfig.from_pretrained(str(folder), local_files_only=True)
    else:
        generation = GenerationConfig.from_model_config(AutoConfig.from_pretrained(str(folder), local_files_only=True))
    configured = generation.eos_token_id
    ids = configured if isinstance(configured, list) else [configured]
    return tuple(sorted({int(token) for token in [*ids, tokenizer.eos_token_id] if token is not None}))


def _options(sizes: Sizes, *, dtype: torch.dtype, cuda: bool, in_process: bool, sleeps: bool) -> VllmOptions:
    return VllmOptions(
        max_model_len=sizes.max_model_len,
        max_num_seqs=sizes.max_num_seqs,
        kv_cache_bytes=sizes.kv_cache_bytes,
        dtype=str(dtype).removeprefix("torch."),
        device="cuda" if cuda else "cpu",
        in_process=in_process,
        enforce_eager=not cuda,
        sleeps=sleeps,
    )
