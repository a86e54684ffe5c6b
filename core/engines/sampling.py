"""Choosing the next token: one random stream per request, and the log-prob of what was chosen.

Sampling is an exponential race: every vocabulary entry v gets a clock E_v ~ Exp(1) from the request's own stream, and the
lowest E_v / p_v wins, which happens with probability p_v exactly. Next to the inverse CDF, which needs one number per
token, the race costs a little more and is far less sensitive to rounding: a change of 1e-6 in the logits moves the
boundaries of thousands of unlikely tokens in a CDF, but changes a race's winner about once in a million tokens. That is
what makes a sample reproducible when its neighbours in the batch differ.

Streams are NumPy's PCG64, drawn on the host, so a seed gives the same numbers on every device. This module does not know
models, caches or stop conditions.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from core.engines.base import NonFiniteLogitsError, SamplingParams

# Candidates looked at before a full sort of the vocabulary is needed for top-p.
_HEAD = 1024


class SampleStream:
    """The random stream of one request. Each sampled token consumes one clock per vocabulary entry and nothing else."""

    def __init__(self, seed: int) -> None:
        self._generator = np.random.Generator(np.random.PCG64(seed))

    def clocks_into(self, row_V: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> None:
        """Fill ``row_V`` with the next independent Exp(1) numbers of this stream."""
        self._generator.standard_exponential(out=row_V)


def choose(logits_BV: Tensor, streams: Sequence[SampleStream], params: SamplingParams) -> tuple[Tensor, Tensor]:
    """Return the next tokens (B, int64) and their natural log-probs (B, fp32) for one decoding step.

    Log-softmax is taken in fp32 whatever the logits' dtype. At temperature 0 the token is the arg max, the lowest id on
    ties, and the log-prob is the one at temperature 1. Otherwise the log-prob is that of the distribution sampled from:
    after temperature, top-k and top-p, in this order. Raises :class:`NonFiniteLogitsError` when a row has no finite maximum.
    """
    greedy = params.temperature == 0
    scaled_BV = logits_BV.float() if greedy else logits_BV.float() / params.temperature
    logp_BV = torch.log_softmax(scaled_BV, dim=-1)
    if not bool(torch.isfinite(logp_BV.amax(dim=-1)).all()):
        raise NonFiniteLogitsError("the model gave non-finite logits; its weights or its dtype are broken")
    if greedy:
        tokens_B = _lowest_argmax(scaled_BV)
        return tokens_B, _pick(logp_BV, tokens_B)
    probs_BV, kept_B = _truncate(logp_BV.exp(), params)
    tokens_B = _race(probs_BV, streams)
    return tokens_B, _pick(logp_BV, tokens_B) - kept_B.log()


def _pick(values_BV: Tensor, tokens_B: Tensor) -> Tensor:
    return values_BV.gather(1, tokens_B[:, None])[:, 0]


def _lowest_argmax(logits_BV: Tensor) -> Tensor:
    """Arg max with the lowest id on ties; torch.argmax leaves the choice among ties open."""
    hits_N2 = (logits_BV == logits_BV.amax(dim=-1, keepdim=True)).nonzero()
    rows_B = torch.arange(len(logits_BV), device=logits_BV.device)
    return hits_N2[torch.searchsorted(hits_N2[:, 0].contiguous(), rows_B), 1]


def _race(probs_BV: Tensor, streams: Sequence[SampleStream]) -> Tensor:
    """Return the winners (B) of the race; a token of probability 0 never wins, since its time is infinite."""
    clocks_BV = np.empty(tuple(probs_BV.shape), dtype=np.float64)
    for row, stream in enumerate(streams):
        stream.clocks_into(clocks_BV[row])
    times_BV = torch.from_numpy(clocks_BV).to(probs_BV.device).div_(probs_BV)
    return times_BV.argmin(dim=-1)


def _truncate(probs_BV: Tensor, params: SamplingParams) -> tuple[Tensor, Tensor]:
    """Zero what top-k and then top-p remove; return the rest and its mass (B).

    Both keep every token that is as probable as the last one kept, so the kept set never depends on how a sort orders
    equal probabilities. Top-p acts on the distribution that top-k left, as in vLLM.
    """
    if params.top_k == 0 and params.top_p >= 1:
        return probs_BV, torch.ones_like(probs_BV[:, 0])
    if params.top_k:
        kth_B1 = probs_BV.topk(min(params.top_k, probs_BV.shape[1]), dim=-1).values[:, -1:]
        probs_BV = torch.where(probs_BV >= kth_B1, probs_BV, 0.0)
    if params.top_p < 1:
        floor_B1 = _nucleus_floor(probs_BV, params.top_p)
        probs_BV = torch.where(probs_BV >= floor_B1, probs_BV, 0.0)
    return probs_BV, probs_BV.sum(dim=-1)


def _nucleus_floor(probs_BV: Tensor, top_p: float) -> Tensor:
    """Return (B, 1): the probability of the last token of the smallest set of likeliest tokens with mass ``top_p``."""
    target_B1 = top_p * probs_BV.sum(dim=-1, keepdim=True)
    vocabulary = probs_BV.shape[1]
    head_BK = probs_BV.topk(min(_HEAD, vocabulary), dim=-1).values
    if bool((head_BK.sum(dim=-1, keepdim=True) < target_B1).any()):
        head_BK = probs_BV.sort(dim=-1, descending=True).values
    before_BK = head_BK.cumsum(dim=-1) - head_BK
    last_B1 = (before_BK < target_B1).sum(dim=-1, keepdim=True) - 1
    return head_BK.gather(1, last_B1)
