"""Generation with vLLM: continuous batching on the real engine, for rollouts and for evaluation.

An engine serves the weights of a model folder. In training its core shares the trainer's process and card: after every
update the trainer's live tensors are loaded into vLLM's own copy (no file, no other process), the prefix cache, computed
with the old weights, is dropped, and until then the engine sleeps, so that the update has the card to itself. Before each
call the engine's weights are compared with the trainer's: samples of old weights are an error, never a curve that looks odd.

It deliberately does not render prompts, hold requests between calls, or choose between engines (``opening`` does).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from core.engines.base import (
    Completion,
    EngineError,
    FinishReason,
    NonFiniteLogitsError,
    Request,
    SamplingParams,
    StaleWeightsError,
    check_requests,
    next_version,
)
from core.engines.vllm_launch import EngineDiedError, VllmOptions, shut_down, start, vllm_version

Weights = Callable[[], Mapping[str, Tensor]]
"""Gives the weights to serve, by their Hugging Face names, a tied one once; live tensors, read and never kept."""

_NOT_FINITE = "the model gave non-finite logits; its weights or its dtype are broken"
_CARD_GREW = "Memory usage increased after sleeping"


class VllmEngine:
    """An :class:`~core.engines.base.Engine` on the model in ``folder``.

    ``live`` gives the trainer's weights; the folder's are taken to be equal to them at the start. ``extra`` are further
    keyword arguments of ``vllm.LLM``. Raises what :func:`core.engines.vllm_launch.start` raises.
    """

    def __init__(
        self,
        folder: Path,
        options: VllmOptions,
        *,
        live: Weights | None = None,
        weights_version: int = 0,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        if live is not None and not options.in_process:
            raise EngineError("live weights can only be handed to an engine in this process: set in_process")
        self._options = options
        self._live = live
        self._llm: Any = start(folder, options, extra)
        self._broken = _requests_with_nans(self._llm)
        self._vocab_size = int(self._llm.llm_engine.model_config.get_vocab_size())
        self._weights_version = weights_version
        self._asleep = False

    @property
    def weights_version(self) -> int:
        """Version of the weights that the next call samples from."""
        return self._weights_version

    def settings(self) -> dict[str, Any]:
        """Everything that can change the output: versions, dtype, batch bounds, memory, graphs, flags of vLLM."""
        import vllm.envs

        options = self._options
        return {
            "engine": "vllm",
            "vllm": vllm_version(),
            "torch": torch.__version__,
            "dtype": options.dtype,
            "device": options.device,
            "seed": options.seed,
            "max_model_len": options.max_model_len,
            "max_num_seqs": options.max_num_seqs,
            "max_num_batched_tokens": self._config.scheduler_config.max_num_batched_tokens,
            "gpu_memory_utilization": self._config.cache_config.gpu_memory_utilization,
            "kv_cache_memory_bytes": options.kv_cache_bytes,
            "enforce_eager": options.enforce_eager,
            "prefix_caching": options.prefix_caching,
            "batch_invariant": bool(getattr(vllm.envs, "VLLM_BATCH_INVARIANT", False)),
            "model_runner_v2": bool(getattr(self._config, "use_v2_model_runner", False)),
            "logprobs_mode": self._config.model_config.logprobs_mode,
            "in_process": options.in_process,
            "sleeps": options.sleeps,
            "threads": torch.get_num_threads(),
        }

    def generate(
        self, requests: Sequence[Request], params: SamplingParams, *, logprobs: bool = True
    ) -> list[Completion]:
        """Sample one completion per request; see :class:`~core.engines.base.Engine` for what is promised.

        Log-probs are left out unless asked for: they travel from vLLM's core token by token, which took half as long again
        as the generation itself.
        """
        llm = self._open_llm()
        check_requests(requests, params, max_model_len=self._options.max_model_len, vocab_size=self._vocab_size)
        self._wake()
        self._check_live()
        if not requests:
            return []
        prompts = [{"prompt_token_ids": list(request.prompt_ids)} for request in requests]
        sampling = [_sampling(request.seed, params, logprobs=logprobs) for request in requests]
        self._broken.clear()
        with self._failures("generating"), _without_compiling(self._options.enforce_eager):
            outputs = llm.generate(prompts, sampling, use_tqdm=False)
        if self._broken:
            raise NonFiniteLogitsError(_NOT_FINITE)
        if len(outputs) != len(requests):
            raise EngineDiedError(f"vLLM gave {len(outputs)} completions for {len(requests)} requests")
        return [_completion(output.outputs[0], params, self._weights_version, logprobs=logprobs) for output in outputs]

    def update_weights(self, version: int | None = None) -> None:
        """Load the trainer's weights into vLLM's copy and drop the prefix cache; an engine that slept is awake then."""
        self._open_llm()
        new = next_version(self._weights_version, version)
        if self._live is None:
            raise EngineError("this engine serves the weights of a folder; it was opened without live weights to take")
        self._load(self._live())
        self._weights_version = new

    def sleep(self) -> None:
        """Give the card's memory back until the next call: the weights go to the host, the cache is dropped."""
        llm = self._open_llm()
        if not self._options.sleeps or self._asleep:
            return
        torch.cuda.synchronize()
        with self._failures("going to sleep"):
            try:
                llm.sleep(level=1)
            except AssertionError as problem:
                if _CARD_GREW not in str(problem):
                    raise
                _note_asleep(llm)
        self._asleep = True

    def close(self) -> None:
        """Shut vLLM down and give its memory back."""
        if self._llm is not None:
            llm, self._llm, self._live = self._llm, None, None
            shut_down(llm)

    @property
    def _config(self) -> Any:
        return self._open_llm().llm_engine.vllm_config

    def _open_llm(self) -> Any:
        if self._llm is None:
            raise EngineError("the engine is closed")
        return self._llm

    @property
    def _runner(self) -> Any:
        """vLLM's model runner, which only an engine in this process can reach."""
        return self._open_llm().llm_engine.model_executor.driver_worker.worker.model_runner

    def _wake(self, *tags: str) -> None:
        if not self._asleep:
            return
        torch.cuda.empty_cache()  # blocks that the trainer's allocator keeps for itself are the engine's memory
        with self._failures("waking up"):
            self._llm.wake_up(tags=list(tags) or None)
        self._asleep = tags == ("weights",)

    def _load(self, weights: Mapping[str, Tensor]) -> None:
        """Copy ``weights`` into vLLM's tensors. The cache's memory is taken only after what loading needs was given back."""
        self._wake("weights")
        with self._failures("taking new weights"), torch.no_grad():
            if self._options.device == "cpu":
                # A CPU engine keeps its matrices packed for its kernels; only vLLM's own reload packs new ones.
                self._runner.reload_weights(weights_iterator=iter(weights.items()))
                _repack_tied_head(self._runner.model)
            else:
                self._load_in_place(weights)
                torch.cuda.synchronize()
        self._wake("kv_cache")
        if not self._llm.reset_prefix_cache():
            raise EngineError("vLLM did not drop its prefix cache, which holds keys and values of the old weights")

    def _load_in_place(self, weights: Mapping[str, Tensor]) -> None:
        model = self._runner.model
        loaded = model.load_weights(iter(weights.items()))
        missing = sorted({name for name, _ in model.named_parameters()} - set(loaded or ()))
        if loaded is not None and missing:
            raise EngineError(
                f"the trainer's weights leave {len(missing)} tensors of vLLM's model unset: {missing[:3]}"
            )

    def _check_live(self) -> None:
        """Compare vLLM's tensors with the trainer's, those that both have under one name (not the fused ones)."""
        if self._live is None:
            return
        served, live = dict(self._runner.model.named_parameters()), self._live()
        for name in live:
            own = served.get(name)
            # A CPU engine has packed its matrices away, and a padded vocabulary has more rows.
            if own is None or own.numel() == 0:
                continue
            same = live[name].detach().to(own)
            if not _same(own.detach()[: len(same)], same):
                raise StaleWeightsError(
                    f"the engine would sample with weights that are not the trainer's: {name} differs from what was handed "
                    f"over as version {self._weights_version}; hand the weights over (update_weights) before sampling"
                )

    def _failures(self, doing: str) -> "_Failures":
        return _Failures(doing)


def _same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors hold the same numbers; broken ones are broken alike, and what they give is named elsewhere."""
    return torch.equal(one, other) or bool(((one == other) | (one.isnan() & other.isnan())).all())


def _note_asleep(llm: Any) -> None:
    """Write down that vLLM sleeps. It does, and then compares the free memory of the whole card before and after.

    Another process that took memory meanwhile fails that comparison, and vLLM would not know that it has to be woken.
    """
    executor = llm.llm_engine.model_executor
    executor.sleeping_tags = {*executor.sleeping_tags, "weights", "kv_cache"}
    if not isinstance(getattr(type(executor), "is_sleeping", None), property):  # a plain flag before vLLM 0.32
        executor.is_sleeping = True


class _Failures:
    """Turns what vLLM raises while it works into :class:`EngineDiedError`; memory and our own errors pass."""

    def __init__(self, doing: str) -> None:
        self._doing = doing

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, problem: BaseException | None, _: object) -> None:
        if isinstance(problem, Exception) and not isinstance(problem, torch.OutOfMemoryError | EngineError):
            raise EngineDiedError(
                f"vLLM {vllm_version()} failed while {self._doing}: {type(problem).__name__}: {problem}"
            ) from problem


def _repack_tied_head(model: Any) -> None:
    """Pack the head of a tied model again: a reload brings no tensor of its own for it and leaves the old packed one."""
    head, embedding = getattr(model, "lm_head", None), getattr(model.model, "embed_tokens", None)
    if head is None or embedding is None or head is embedding or not model.config.tie_word_embeddings:
        return
    head.weight = embedding.weight
    head.quant_method.process_weights_after_loading(head)


def _requests_with_nans(llm: Any) -> set[str]:
    """Return a set that collects the requests in whose logits vLLM counts a NaN, which it does not tell its caller."""
    processor, found = llm.llm_engine.output_processor, set[str]()
    process = processor.process_outputs

    def watched(outputs: Any, *args: Any, **more: Any) -> Any:
        found.update(output.request_id for output in outputs if output.num_nans_in_logits)
        return process(outputs, *args, **more)

    processor.process_outputs = watched
    return found


def _without_compiling(eager: bool) -> Any:
    """An eager engine compiles nothing: its sampler alone would cost the first call on a CPU twenty seconds."""
    return torch.compiler.set_stance("force_eager") if eager else nullcontext()


def _sampling(seed: int, params: SamplingParams, *, logprobs: bool) -> Any:
    import vllm

    return vllm.SamplingParams(
        temperature=params.temperature,
        top_p=params.top_p,
        top_k=params.top_k,
        seed=seed,
        max_tokens=params.max_tokens,
        logprobs=0 if logprobs else None,  # 0: of the sampled token alone
        flat_logprobs=True,
        # Stop tokens are the request's own and not also those of the model's configuration.
        ignore_eos=True,
        stop_token_ids=list(params.stop_token_ids),
        stop=list(params.stop),
        include_stop_str_in_output=True,
        detokenize=bool(params.stop),
        skip_special_tokens=False,
        spaces_between_special_tokens=False,
    )


def _completion(output: Any, params: SamplingParams, version: int, *, logprobs: bool) -> Completion:
    tokens = tuple(output.token_ids)
    values = tuple(output.logprobs.logprobs) if logprobs else ()
    if not tokens or (logprobs and len(tokens) != len(values)):
        raise EngineDiedError(f"vLLM gave {len(tokens)} tokens with {len(values)} log-probs for one completion")
    if not all(math.isfinite(value) for value in values):
        raise NonFiniteLogitsError(_NOT_FINITE)
    return Completion(tokens, values, _finish_reason(output, params), version)


def _finish_reason(output: Any, params: SamplingParams) -> FinishReason:
    """A stop token sampled as the last allowed one counts as "stop", whatever vLLM looked at first."""
    if output.token_ids[-1] in params.stop_token_ids or output.finish_reason == "stop":
        return "stop"
    if output.finish_reason == "length":
        return "length"
    raise EngineDiedError(
        f"vLLM ended a completion with {output.finish_reason!r} instead of a stop or the length limit"
    )
