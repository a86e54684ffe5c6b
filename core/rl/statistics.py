"""Statistics of one micro-batch's tokens as sums and counts, so that micro-batches combine by addition.

A mean of means would depend on how the update was cut. Nothing here takes part in the loss.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from core.rl.objective import Objective, TokenTerms, ratio


@dataclass(frozen=True, slots=True)
class TokenStats:
    """Sums over the tokens of non-zero weight.

    ``approx_kl_k1`` and ``approx_kl_k3`` estimate KL(old || current) from log-probs at rollout and now. ``clip_low`` counts
    tokens with A < 0 and ratio below the lower bound, ``clip_high`` those with A > 0 and ratio above the upper one,
    ``clip_dual`` those with A < 0 and ratio above the dual bound: the tokens whose surrogate has no gradient.
    """

    tokens: int = 0
    clip_low: float = 0.0
    clip_high: float = 0.0
    clip_dual: float = 0.0
    ratio: float = 0.0
    ratio_max: float = -math.inf
    approx_kl_k1: float = 0.0
    approx_kl_k3: float = 0.0
    ref_kl_k1: float = 0.0
    ref_kl_k3: float = 0.0
    entropy: float = 0.0
    logp: float = 0.0
    logp_squared: float = 0.0
    logp_min: float = math.inf

    def __add__(self, other: "TokenStats") -> "TokenStats":
        return TokenStats(
            tokens=self.tokens + other.tokens,
            ratio_max=max(self.ratio_max, other.ratio_max),
            logp_min=min(self.logp_min, other.logp_min),
            **{name: getattr(self, name) + getattr(other, name) for name in _SUMS},
        )

    def means(self) -> dict[str, float]:
        """Mean per token of each sum, with ``ratio_max``, ``logp_min`` and ``logp_std``; empty without tokens."""
        if not self.tokens:
            return {}
        means: dict[str, float] = {name: getattr(self, name) / self.tokens for name in _SUMS}
        spread = means.pop("logp_squared") - means["logp"] ** 2
        # Rounding can leave a small negative number; a NaN must stay visible.
        means["logp_std"] = 0.0 if spread <= 0 else math.sqrt(spread) if math.isfinite(spread) else math.nan
        return means | {"ratio_max": self.ratio_max, "logp_min": self.logp_min}


_SUMS = (
    "clip_low",
    "clip_high",
    "clip_dual",
    "ratio",
    "approx_kl_k1",
    "approx_kl_k3",
    "ref_kl_k1",
    "ref_kl_k3",
    "entropy",
    "logp",
    "logp_squared",
)


def token_stats(logp_T: Tensor, entropy_T: Tensor, terms: TokenTerms, objective: Objective) -> TokenStats:
    """Collect the statistics of one micro-batch; one transfer from the device."""
    keep_K = (terms.weight_T != 0).nonzero().squeeze(-1)
    if not keep_K.numel():
        return TokenStats()
    ratio_K = ratio(logp_T, terms, objective.kind)[keep_K].double()
    kept = terms.take(keep_K)
    logp_K, negative_K, positive_K = logp_T[keep_K].double(), kept.advantage_T < 0, kept.advantage_T > 0
    moved_K = logp_K - (logp_K if kept.logp_old_T is None else kept.logp_old_T.double())
    dual = math.inf if objective.dual_clip is None else objective.dual_clip
    drift_K = torch.zeros_like(logp_K) if kept.ref_logp_T is None else logp_K - kept.ref_logp_T.double()
    sums = {
        "clip_low": (negative_K & (ratio_K < 1 - objective.clip_low)).double(),
        "clip_high": (positive_K & (ratio_K > 1 + objective.clip_high)).double(),
        "clip_dual": (negative_K & (ratio_K > dual)).double(),
        "ratio": ratio_K,
        "approx_kl_k1": -moved_K,
        "approx_kl_k3": torch.expm1(moved_K) - moved_K,
        "ref_kl_k1": drift_K,
        "ref_kl_k3": torch.expm1(-drift_K) + drift_K,
        "entropy": entropy_T[keep_K].double(),
        "logp": logp_K,
        "logp_squared": logp_K**2,
    }
    numbers = torch.stack([*(value.sum() for value in sums.values()), ratio_K.max(), logp_K.min()]).tolist()
    return TokenStats(
        tokens=keep_K.numel(),
        ratio_max=numbers[-2],
        logp_min=numbers[-1],
        **dict(zip(sums, numbers[:-2], strict=True)),
    )


@dataclass(frozen=True, slots=True)
class MismatchStats:
    """Difference between the engine's and the trainer's log-probs of the sampled tokens, as sums over tokens."""

    tokens: int = 0
    kl_k1: float = 0.0
    kl_k3: float = 0.0
    absolute: float = 0.0
    absolute_max: float = 0.0

    def __add__(self, other: "MismatchStats") -> "MismatchStats":
        return MismatchStats(
            self.tokens + other.tokens,
            self.kl_k1 + other.kl_k1,
            self.kl_k3 + other.kl_k3,
            self.absolute + other.absolute,
            max(self.absolute_max, other.absolute_max),
        )


def mismatch_stats(logp_trainer_BT: Tensor, logp_engine_BT: Tensor, mask_BT: Tensor) -> MismatchStats:
    """Estimate KL(engine || trainer) on the engine's samples; both log-probs at the sampling temperature.

    ``kl_k1`` sums engine - trainer, ``kl_k3`` sums exp(d) - d - 1 with d = trainer - engine, which is never negative.
    """
    mask = mask_BT.bool()
    difference_K = logp_trainer_BT[mask].double() - logp_engine_BT[mask].double()
    if not difference_K.numel():
        return MismatchStats()
    k3_K = torch.expm1(difference_K) - difference_K
    parts = [-difference_K.sum(), k3_K.sum(), difference_K.abs().sum(), difference_K.abs().max()]
    return MismatchStats(difference_K.numel(), *torch.stack(parts).tolist())
