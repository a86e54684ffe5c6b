"""What every engine promises: requests in, completions out, in request order, with log-probs and a weights version.

This module holds the shared data classes, the :class:`Engine` protocol and the checks that every engine runs before it
generates anything. It deliberately imports no torch and knows no model: an engine is given token ids, never text, and
returns the token ids that it sampled. Text is for display.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

FinishReason = Literal["stop", "length"]


class EngineError(RuntimeError):
    """An engine was used in a way that it does not support; the message says what is allowed."""


class NonFiniteLogitsError(EngineError):
    """The weights give logits that are not finite, so no token can be chosen."""


class StaleWeightsError(EngineError):
    """The engine would sample with weights that are not the trainer's current ones."""


class RequestError(EngineError, ValueError):
    """A request or its sampling parameters cannot be served; the message names the field and how to mend it."""


@dataclass(frozen=True)
class SamplingParams:
    """How every request of one call is sampled.

    ``temperature`` 0 is greedy decoding: the highest logit, the lowest token id on ties. ``top_k`` 0 and ``top_p`` 1 are
    off. ``max_tokens`` bounds the sampled tokens, the prompt not counted. A sampled token among ``stop_token_ids`` ends
    the completion and belongs to it; so does the token whose text completes one of the strings ``stop``.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_tokens: int = 256
    stop_token_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise RequestError(f"temperature is {self.temperature}; it must be 0 (greedy) or a positive finite number")
        if not 0 < self.top_p <= 1:
            raise RequestError(f"top_p is {self.top_p}; it must be above 0 and at most 1 (1 keeps every token)")
        if self.top_k < 0:
            raise RequestError(f"top_k is {self.top_k}; it must be 0 (keep every token) or positive")
        if self.max_tokens < 1:
            raise RequestError(f"max_tokens is {self.max_tokens}; it must be at least 1")
        if any(token < 0 for token in self.stop_token_ids):
            raise RequestError(f"stop_token_ids is {list(self.stop_token_ids)}; token ids are not negative")
        if "" in self.stop:
            raise RequestError("stop holds an empty string, which would end every completion at once; remove it")


@dataclass(frozen=True)
class Request:
    """One completion to sample: the prompt's token ids and the seed of this sample's own random stream."""

    prompt_ids: tuple[int, ...]
    seed: int = 0


@dataclass(frozen=True)
class Completion:
    """The sampled tokens of one request, the stop token included.

    ``logprobs`` holds, for each token, the natural log of the probability with which it was sampled: at the sampling
    temperature and after top-k and top-p. Greedy decoding reports it at temperature 1 over the whole vocabulary.
    Empty where the call did not ask for them.
    ``finish_reason`` is "stop" for a stop token or stop string and "length" at ``max_tokens``; a stop token sampled as
    the last allowed token counts as "stop". ``weights_version`` names the weights that produced every token.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: FinishReason
    weights_version: int


class Engine(Protocol):
    """A text generator. Implementations are used by one thread at a time."""

    @property
    def weights_version(self) -> int:
        """Version of the weights that the next call will sample from."""
        ...

    def generate(
        self, requests: Sequence[Request], params: SamplingParams, *, logprobs: bool = True
    ) -> list[Completion]:
        """Sample one completion per request, returned in request order; without ``logprobs`` an engine may leave them out.

        What a request yields depends on its prompt, its seed and ``params``, and not on the order of the requests or
        on their neighbours (up to floating-point rounding of the logits, where a kernel rounds differently by batch
        shape). Raises :class:`RequestError` before anything is generated when a request cannot be served.
        """
        ...

    def update_weights(self, version: int | None = None) -> None:
        """Announce that the weights changed; drop everything derived from the old ones.

        ``version`` must be above the current version; None means the next one. A version never comes back, so every
        sample can be traced to the weights that made it.
        """
        ...

    def sleep(self) -> None:
        """Give back what memory can be had again; the next call wakes the engine. Nothing for one without memory of its own."""
        ...

    def settings(self) -> dict[str, Any]:
        """Everything about this engine that can change its output, as JSON-able values for the record."""
        ...

    def close(self) -> None:
        """Release what the engine holds. Calling it twice is allowed; generating afterwards is an error."""
        ...


def next_version(current: int, version: int | None) -> int:
    """Return the version after an update, refusing one that is not above ``current``."""
    if version is None:
        return current + 1
    if version <= current:
        raise EngineError(
            f"weights version {version} is not above the current version {current}; versions only increase"
        )
    return version


def require_version(engine: Engine, trainer: int) -> None:
    """Refuse to sample when the engine holds other weights than the trainer, whose version is ``trainer``."""
    if engine.weights_version != trainer:
        raise StaleWeightsError(
            f"the engine holds weights version {engine.weights_version} and the trainer version {trainer}; "
            "hand the weights over (update_weights) before sampling"
        )


def check_requests(requests: Sequence[Request], params: SamplingParams, *, max_model_len: int, vocab_size: int) -> None:
    """Refuse what cannot be served, before any token is generated.

    A request needs a prompt of at least one token, token ids within the vocabulary, and room for ``max_tokens`` after
    its prompt within ``max_model_len`` tokens. Raises :class:`RequestError` that names the first bad request.
    """
    for token in params.stop_token_ids:
        if token >= vocab_size:
            raise RequestError(f"stop_token_ids holds {token}, but the vocabulary ends at {vocab_size - 1}")
    for index, request in enumerate(requests):
        length = len(request.prompt_ids)
        if length == 0:
            raise RequestError(f"requests[{index}].prompt_ids is empty; a prompt needs at least one token")
        if not (min(request.prompt_ids) >= 0 and max(request.prompt_ids) < vocab_size):
            raise RequestError(f"requests[{index}].prompt_ids holds an id outside 0..{vocab_size - 1}")
        if length + params.max_tokens > max_model_len:
            raise RequestError(
                f"requests[{index}] needs {length} prompt tokens + max_tokens {params.max_tokens} = "
                f"{length + params.max_tokens}, above the engine's max_model_len {max_model_len}; "
                "shorten the prompt, lower max_tokens, or drop the item"
            )
        if request.seed < 0:
            raise RequestError(f"requests[{index}].seed is {request.seed}; a seed is not negative")


def finish_reason(token: int, count: int, params: SamplingParams, stops: Collection[int]) -> FinishReason | None:
    """Say whether a completion of ``count`` tokens that just sampled ``token`` is over, stop strings aside."""
    if token in stops:
        return "stop"
    return "length" if count >= params.max_tokens else None
