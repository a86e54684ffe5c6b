"""An exact engine without a network: a first-order Markov chain over a small vocabulary.

The next token depends on the last one only, through a table of logits, so every log-prob is known in closed form and a
test can check a trainer against arithmetic instead of against another engine. The table is read at each call and may be
shared with a trained model (a bigram model whose embedding is the table and whose head is the identity computes the same
logits). It knows no text, so stop strings are refused.
"""

import math
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from core.engines.base import (
    Completion,
    EngineError,
    FinishReason,
    Request,
    SamplingParams,
    check_requests,
    finish_reason,
    next_version,
)

Array = npt.NDArray[np.float64]


def markov_logits(vocab_size: int, seed: int) -> Array:
    """Return a random table of logits [V, V], fp64: row = last token, column = next token."""
    return np.random.default_rng(seed).normal(size=(vocab_size, vocab_size)) * 1.5


class FakeEngine:
    """An :class:`~core.engines.base.Engine` on a table of logits [V, V]."""

    def __init__(self, logits_VV: npt.NDArray[Any], *, max_model_len: int = 4096, weights_version: int = 0) -> None:
        if logits_VV.ndim != 2 or logits_VV.shape[0] != logits_VV.shape[1]:
            raise EngineError(f"the table of logits has shape {logits_VV.shape}; it must be square, one row per token")
        self._logits_VV = logits_VV
        self._max_model_len = max_model_len
        self._weights_version = weights_version
        self._closed = False

    @property
    def weights_version(self) -> int:
        """Version of the table that the next call samples from."""
        return self._weights_version

    def update_weights(self, version: int | None = None) -> None:
        """Count a new version of the shared table."""
        self._weights_version = next_version(self._weights_version, version)

    def sleep(self) -> None:
        """Nothing to give back: the table is the caller's."""

    def settings(self) -> dict[str, Any]:
        """The engine's name and sizes; there is nothing else that could change its output."""
        return {"engine": "fake", "vocab_size": len(self._logits_VV), "max_model_len": self._max_model_len}

    def close(self) -> None:
        """Refuse further calls."""
        self._closed = True

    def generate(
        self, requests: Sequence[Request], params: SamplingParams, *, logprobs: bool = True
    ) -> list[Completion]:
        """Sample one completion per request by inverse CDF, one uniform of the request's own stream per token."""
        if self._closed:
            raise EngineError("the engine is closed")
        if params.stop:
            raise EngineError("the fake engine knows no text; use stop_token_ids instead of stop strings")
        check_requests(requests, params, max_model_len=self._max_model_len, vocab_size=len(self._logits_VV))
        return [self._complete(request, params) for request in requests]

    def logprobs(self, last: int, params: SamplingParams) -> Array:
        """Return the exact log-probs (V, fp64) with which the token after ``last`` is sampled and reported.

        Greedy decoding reports temperature 1 over the whole vocabulary. Tokens that top-k or top-p removes are -inf.
        """
        logits_V = np.asarray(self._logits_VV[last], dtype=np.float64)
        if params.temperature == 0:
            return _log_softmax(logits_V)
        logp_V = _log_softmax(logits_V / params.temperature)
        if params.top_k:
            kth = np.sort(logp_V)[-min(params.top_k, len(logp_V))]
            logp_V = _log_softmax(np.where(logp_V >= kth, logp_V, -math.inf))
        if params.top_p < 1:
            descending = np.sort(np.exp(logp_V))[::-1]
            kept = int((np.cumsum(descending) - descending < params.top_p).sum())
            floor = np.sort(logp_V)[::-1][kept - 1]
            logp_V = _log_softmax(np.where(logp_V >= floor, logp_V, -math.inf))
        return logp_V

    def _complete(self, request: Request, params: SamplingParams) -> Completion:
        stream = random.Random(request.seed)  # noqa: S311 - reproducibility is the purpose, not secrecy
        stops = frozenset(params.stop_token_ids)
        tokens: list[int] = []
        logprobs: list[float] = []
        finish: FinishReason | None = None
        last = request.prompt_ids[-1]
        while finish is None:
            logp_V = self.logprobs(last, params)
            last = int(np.argmax(logp_V)) if params.temperature == 0 else _inverse_cdf(logp_V, stream.random())
            tokens.append(last)
            logprobs.append(float(logp_V[last]))
            finish = finish_reason(last, len(tokens), params, stops)
        return Completion(tuple(tokens), tuple(logprobs), finish, self._weights_version)


def _log_softmax(logits_V: Array) -> Array:
    shifted = logits_V - logits_V.max()
    return np.asarray(shifted - np.log(np.exp(shifted).sum()), dtype=np.float64)


def _inverse_cdf(logp_V: Array, uniform: float) -> int:
    """The token whose interval of the CDF holds ``uniform``; rounding never yields a token of probability 0."""
    cdf_V = np.cumsum(np.exp(logp_V))
    index = int(np.searchsorted(cdf_V, uniform * cdf_V[-1], side="right"))
    return min(index, int(np.flatnonzero(np.isfinite(logp_V))[-1]))
