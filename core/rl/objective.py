"""Objectives as a loss per token: clipped surrogate, KL penalty, entropy bonus, likelihood, and the weights that aggregate.

The loss of an update is the plain sum of ``policy_loss`` over all its tokens. Whatever averages (over tokens, over
sequences, by a constant) is folded into ``weight_T`` before the first backward, with denominators from the whole update, so
the result does not depend on how the update is cut into micro-batches, chunks or accumulation steps.

Everything here is differentiable PyTorch on vectors with one entry per token. It never sees logits or a vocabulary: see
:mod:`core.rl.chunked` for that.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Literal

import torch
from torch import Tensor

from core.rl.transfer import to_device

Kind = Literal["token", "sequence", "likelihood"]
Aggregation = Literal["seq_mean_token_mean", "token_mean", "seq_mean_token_sum_norm"]
KlEstimator = Literal["k1", "k2", "k3"]
ImportanceMode = Literal["none", "truncate", "mask"]
ImportanceLevel = Literal["token", "sequence"]

# exp(20) is far outside every clip range and far inside float32; verl clamps at the same value.
LOG_RATIO_LIMIT = 20.0


@dataclass(frozen=True, slots=True)
class Objective:
    """What is minimised.

    Attributes:
        kind: ``token`` has one ratio per token (GRPO, RLOO, REINFORCE++); ``sequence`` one ratio per sequence, the
            exponential of the mean log-ratio over its valid tokens (GSPO, equation 7); ``likelihood`` has none: the loss
            of a token is its advantage times minus its log-prob, which is cross entropy where the advantage is 1.
        clip_low, clip_high: the ratio is clipped to ``[1 - clip_low, 1 + clip_high]``.
        dual_clip: upper bound of the ratio where the advantage is negative (dual-clip PPO, Ye et al. 2020; verl's
            ``clip_ratio_c``); None for no bound. It bounds the sequence ratio too; the GSPO paper has None.
        aggregation: how tokens are averaged, see :func:`token_weights`.
        norm_length: the constant divisor of ``seq_mean_token_sum_norm``.
        kl_coef: weight of the KL penalty to the reference; 0 needs no reference.
        kl_estimator: with d = logp - ref: k1 is d, k2 is d^2 / 2, k3 is exp(-d) + d - 1 (Schulman 2020). The gradient is
            that of the estimator as written. k1 therefore has expected gradient 0 on policy; it is a curve more than a
            penalty.
        entropy_coef: weight of the entropy bonus.

    Raises:
        ValueError: naming the field, when a value is outside what is allowed.
    """

    kind: Kind = "token"
    clip_low: float = 0.2
    clip_high: float = 0.28
    dual_clip: float | None = 3.0
    aggregation: Aggregation = "seq_mean_token_mean"
    norm_length: float | None = None
    kl_coef: float = 0.0
    kl_estimator: KlEstimator = "k3"
    entropy_coef: float = 0.0

    def __post_init__(self) -> None:
        _one_of("kind", self.kind, ("token", "sequence", "likelihood"))
        _one_of("kl_estimator", self.kl_estimator, ("k1", "k2", "k3"))
        _check_aggregation(self.aggregation, self.norm_length)
        if not 0.0 <= self.clip_low <= 1.0:
            raise ValueError(f"clip_low must be between 0 and 1, got {self.clip_low}")
        if not 0.0 <= self.clip_high < math.inf:
            raise ValueError(f"clip_high must be 0 or more and finite, got {self.clip_high}")
        if self.dual_clip is not None and not 1.0 + self.clip_high < self.dual_clip < math.inf:
            raise ValueError(
                f"dual_clip must exceed 1 + clip_high = {1 + self.clip_high}, or be None; got {self.dual_clip}"
            )
        if not (math.isfinite(self.kl_coef) and math.isfinite(self.entropy_coef)):
            raise ValueError(f"kl_coef and entropy_coef must be finite, got {self.kl_coef} and {self.entropy_coef}")
        if self.kind == "likelihood" and (self.kl_coef or self.entropy_coef):
            raise ValueError("kl_coef and entropy_coef must be 0 when kind is 'likelihood'")
        if self.kind == "sequence" and self.aggregation != "seq_mean_token_mean":
            raise ValueError(
                f"aggregation must be 'seq_mean_token_mean' when kind is 'sequence', got {self.aggregation!r}"
            )


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(allowed)}; got {value!r}")


def _check_aggregation(aggregation: str, norm_length: float | None) -> None:
    _one_of("aggregation", aggregation, ("seq_mean_token_mean", "token_mean", "seq_mean_token_sum_norm"))
    if aggregation == "seq_mean_token_sum_norm" and (norm_length is None or not 0 < norm_length < math.inf):
        raise ValueError(
            f"norm_length must be a positive number when aggregation is {aggregation!r}, got {norm_length}"
        )


@dataclass(frozen=True, slots=True)
class TokenTerms:
    """What the objective needs to know about each token of one micro-batch, besides its log-prob.

    Attributes:
        weight_T: folded weight from :func:`token_weights`; 0 leaves the token out altogether, whatever its other values.
        advantage_T: advantage of the token's sample; constant within a sequence for the ``sequence`` kind.
        logp_old_T: log-prob at the rollout's weights, by the same code path; None means that these are the current
            weights, so that the ratio is exactly 1. Only the first update after a rollout may pass None.
        ref_logp_T: log-prob under the frozen reference; needed when ``kl_coef`` is not 0.
        is_weight_T: importance weight from :func:`importance_weights`; multiplies the surrogate, neither KL nor entropy.
        sequence_T: index of the token's sequence within the micro-batch, for the ``sequence`` kind; every sequence
            must be complete within one micro-batch.
    """

    weight_T: Tensor
    advantage_T: Tensor
    logp_old_T: Tensor | None = None
    ref_logp_T: Tensor | None = None
    is_weight_T: Tensor | None = None
    sequence_T: Tensor | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value: Tensor | None = getattr(self, field.name)
            if value is not None and value.shape != self.weight_T.shape:
                expected, found = tuple(self.weight_T.shape), tuple(value.shape)
                raise ValueError(f"{field.name} must have the shape of weight_T, {expected}, got {found}")

    def check(self, objective: Objective) -> None:
        """Raise ValueError when ``objective`` needs a term that is missing."""
        if objective.kl_coef != 0.0 and self.ref_logp_T is None:
            raise ValueError("ref_logp_T is needed because kl_coef is not 0")
        if objective.kind == "sequence" and self.sequence_T is None:
            raise ValueError("sequence_T is needed because kind is 'sequence'")

    def take(self, index_C: Tensor) -> "TokenTerms":
        """The same terms at the positions ``index_C``."""
        return self._map(lambda value: value.index_select(0, index_C))

    def slice(self, part: slice) -> "TokenTerms":
        """The same terms at a range of positions; views."""
        return self._map(lambda value: value[part])

    def to(self, dtype: torch.dtype, device: torch.device) -> "TokenTerms":
        """The same terms on ``device``, floating ones in ``dtype``."""
        return self._map(lambda value: to_device(value, device, dtype if value.is_floating_point() else None))

    def _map(self, change: Callable[[Tensor], Tensor]) -> "TokenTerms":
        given = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) is not None}
        return replace(self, **{name: change(value) for name, value in given.items()})


@dataclass(frozen=True, slots=True)
class UpdateTotals:
    """Surviving sequences (those with a valid token) and valid tokens of a whole update; ``tokens == 0`` means: skip it."""

    sequences: int
    tokens: int


def update_totals(mask_BT: Tensor) -> UpdateTotals:
    """Count the surviving sequences and tokens of ``mask_BT``, the mask of every sample of the update."""
    lengths_B = mask_BT.bool().sum(-1)
    return UpdateTotals(sequences=int((lengths_B > 0).sum()), tokens=int(lengths_B.sum()))


def token_weights(
    mask_BT: Tensor,
    aggregation: Aggregation,
    norm_length: float | None = None,
    *,
    totals: UpdateTotals | None = None,
) -> Tensor:
    """Fold an aggregation into one weight per token, so that the loss is the plain sum of weight times token loss.

    Args:
        mask_BT: True at the tokens that count. Samples taken out of the loss (truncated ones, samples without a reward)
            are False throughout and then count in no denominator.
        aggregation: ``seq_mean_token_mean`` weights by 1 / (sequences x own length), ``token_mean`` by 1 / tokens,
            ``seq_mean_token_sum_norm`` by 1 / (sequences x norm_length) (Dr. GRPO).
        norm_length: the divisor of ``seq_mean_token_sum_norm``.
        totals: counts of the whole update when ``mask_BT`` is only a part of it; None when it is all of it.

    Returns:
        float64 [B, T]; all 0 when nothing survives.
    """
    _check_aggregation(aggregation, norm_length)
    totals = update_totals(mask_BT) if totals is None else totals
    mask = mask_BT.bool()
    sequences = max(totals.sequences, 1)
    if aggregation == "token_mean":
        return mask.double() / max(totals.tokens, 1)
    if aggregation == "seq_mean_token_mean":
        return mask.double() / (mask.sum(-1, keepdim=True).clamp(min=1).double() * sequences)
    return mask.double() / (sequences * float(norm_length or math.nan))


def importance_weights(
    logp_old_BT: Tensor,
    logp_engine_BT: Tensor,
    mask_BT: Tensor,
    *,
    mode: ImportanceMode,
    level: ImportanceLevel = "token",
    cap: float = 2.0,
) -> Tensor:
    """Importance weights that correct for samples drawn by an engine whose log-probs differ from the trainer's.

    The weight is exp(logp_old - logp_engine) per token, or the product over the valid tokens of a sequence. ``truncate``
    replaces weights above ``cap`` by ``cap``; ``mask`` by 0; ``none`` gives 1. A weight of 0 takes the token's surrogate out
    and leaves it in the denominators: importance weights estimate an expectation over all samples that were drawn.

    Returns:
        float64 [B, T], 0 outside the mask.
    """
    _one_of("mode", mode, ("none", "truncate", "mask"))
    _one_of("level", level, ("token", "sequence"))
    if not 0 < cap < math.inf:
        raise ValueError(f"cap must be a positive number, got {cap}")
    mask = mask_BT.bool()
    if mode == "none":
        return mask.double()
    log_BT = _masked_log_ratio(logp_old_BT.double(), logp_engine_BT.double(), mask)
    if level == "sequence":
        log_BT = log_BT.sum(-1, keepdim=True).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).expand_as(log_BT)
    weight_BT = log_BT.exp()
    # Written so that a weight that is not a number stays one in either mode.
    weight_BT = weight_BT.clamp(max=cap) if mode == "truncate" else torch.where(weight_BT > cap, 0.0, weight_BT)
    return torch.where(mask, weight_BT, 0.0)


def policy_loss(logp_T: Tensor, entropy_T: Tensor, terms: TokenTerms, objective: Objective) -> Tensor:
    """Weighted loss of each token, differentiable in ``logp_T`` and ``entropy_T``; its sum is the loss.

    ``weight (is_weight surrogate(ratio, advantage) + kl_coef kl - entropy_coef entropy)``. Tokens of weight 0 contribute
    exactly 0 to the loss and to every gradient, even when their values are infinite or not numbers.

    Args:
        logp_T: log-prob of each sampled token under the current weights.
        entropy_T: entropy of each token's distribution.
        terms: see :class:`TokenTerms`.
        objective: see :class:`Objective`.
    """
    terms.check(objective)
    keep = terms.weight_T != 0
    logp = torch.where(keep, logp_T, 0.0)
    advantage = torch.where(keep, terms.advantage_T, 0.0)
    if objective.kind == "likelihood":
        return torch.where(keep, terms.weight_T, 0.0) * advantage * -logp
    old = logp_T.detach() if terms.logp_old_T is None else terms.logp_old_T
    ratio = _ratio(_masked_log_ratio(logp_T, old, keep), keep, terms.sequence_T, objective.kind)
    loss = surrogate(ratio, advantage, objective)
    if terms.is_weight_T is not None:
        loss = loss * torch.where(keep, terms.is_weight_T, 0.0)
    if objective.kl_coef != 0.0 and terms.ref_logp_T is not None:
        reference = torch.where(keep, terms.ref_logp_T, 0.0)
        loss = loss + objective.kl_coef * kl_penalty(logp, reference, objective.kl_estimator)
    if objective.entropy_coef != 0.0:
        loss = loss - objective.entropy_coef * torch.where(keep, entropy_T, 0.0)
    return torch.where(keep, terms.weight_T, 0.0) * loss


def _masked_log_ratio(logp: Tensor, old: Tensor, keep: Tensor) -> Tensor:
    """Clamped log-ratio, 0 where not kept. Masked before any exp: infinity times 0 would be NaN in the backward."""
    difference = torch.where(keep, logp, 0.0) - torch.where(keep, old, 0.0)
    return difference.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


def _ratio(log_ratio_T: Tensor, keep_T: Tensor, sequence_T: Tensor | None, kind: Kind) -> Tensor:
    if kind != "sequence" or sequence_T is None:
        return log_ratio_T.exp()
    if not sequence_T.numel():
        return log_ratio_T.exp()
    sequences = int(sequence_T.max()) + 1
    count_B = log_ratio_T.new_zeros(sequences).index_add(0, sequence_T, keep_T.to(log_ratio_T.dtype))
    sum_B = log_ratio_T.new_zeros(sequences).index_add(0, sequence_T, log_ratio_T)
    return (sum_B / count_B.clamp(min=1.0)).exp()[sequence_T]


def ratio(logp_T: Tensor, terms: TokenTerms, kind: Kind) -> Tensor:
    """Ratio of each token, or of its sequence, to the rollout's policy; 1 where the weight is 0."""
    old = logp_T if terms.logp_old_T is None else terms.logp_old_T
    keep = terms.weight_T != 0
    return _ratio(_masked_log_ratio(logp_T, old, keep), keep, terms.sequence_T, kind)


def surrogate(ratio_T: Tensor, advantage_T: Tensor, objective: Objective) -> Tensor:
    """PPO's clipped surrogate with its sign turned (Schulman et al. 2017, equation 7), bounded where A < 0 (dual clip)."""
    clipped = ratio_T.clamp(1.0 - objective.clip_low, 1.0 + objective.clip_high)
    loss = -torch.minimum(ratio_T * advantage_T, clipped * advantage_T)
    if objective.dual_clip is None:
        return loss
    return torch.where(advantage_T < 0, torch.minimum(loss, -objective.dual_clip * advantage_T), loss)


def kl_penalty(logp_T: Tensor, ref_logp_T: Tensor, estimator: KlEstimator) -> Tensor:
    """One-sample estimate of KL(policy || reference) per token, with its own gradient; log-ratio clamped."""
    difference = (logp_T - ref_logp_T).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    match estimator:
        case "k1":
            return difference
        case "k2":
            return 0.5 * difference**2
        case "k3":
            return torch.expm1(-difference) + difference
