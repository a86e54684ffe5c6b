"""From scored samples to what each token weighs in the loss: advantages, the KL in the reward, importance weights.

Nothing here runs a model: log-probs come in per sequence, one tensor [T] each, at the rollout's weights and the sampling
temperature. The formulas are ``core.rl``'s; this module only pads, calls and cuts again.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from core.recipes.algorithm import Algorithm, ImportanceCorrection
from core.rl.advantages import AdvantageResult, whitened_returns
from core.rl.objective import importance_weights
from core.rl.shaping import kl_penalties, returns_to_go
from core.rl.statistics import mismatch_stats
from core.train.algorithm import advantages_of

# Any weight is below this, so truncating at it leaves the weight as it is.
_NO_CAP = 1e30


@dataclass(frozen=True)
class Weighed:
    """Advantages of one step's samples.

    ``token_advantages`` holds one tensor [T] per sample where they differ within it (REINFORCE++ with KL in the reward);
    ``result`` then holds each sample's mean. ``kl_penalty`` is what each sample's reward lost, None without KL in it.
    """

    result: AdvantageResult
    token_advantages: tuple[Tensor, ...] | None = None
    kl_penalty: tuple[float, ...] | None = None


def weigh(
    algorithm: Algorithm,
    rewards: Sequence[float | None],
    groups: Sequence[int],
    lengths: Sequence[int],
    *,
    logp: Sequence[Tensor] | None = None,
    ref_logp: Sequence[Tensor] | None = None,
) -> Weighed:
    """Return the advantages of one step's samples.

    ``lengths`` are tokens in the loss, 0 for a sample that is masked there. The log-probs of all samples are needed where the
    KL is in the reward, and only there.
    """
    if not (algorithm.kl.in_reward and algorithm.kl.coef):
        return Weighed(advantages_of(algorithm, rewards, groups, lengths))
    if logp is None or ref_logp is None:
        raise ValueError("KL in the reward needs the log-probs of policy and reference")
    mask_BT = _mask([len(values) for values in logp])
    penalties_BT = kl_penalties(
        pad(logp), pad(ref_logp), mask_BT, coef=algorithm.kl.coef, estimator=algorithm.kl.estimator
    )
    penalty = penalties_BT.sum(-1).tolist()
    penalised = [None if reward is None else reward - less for reward, less in zip(rewards, penalty, strict=True)]
    # A penalty that is not a number must end in the gradient, where it is seen, and not as "no verdict".
    result = _visible(advantages_of(algorithm, penalised, groups, lengths), penalised)
    if algorithm.name != "reinforce_plus_plus" or algorithm.baseline:
        return Weighed(result, kl_penalty=tuple(penalty))
    rewards_B = torch.tensor([0.0 if reward is None else reward for reward in rewards], dtype=torch.float64)
    counted_BT = mask_BT & (result.valid_B & (torch.tensor(lengths) > 0))[:, None]
    returns_BT = returns_to_go(rewards_B, penalties_BT, mask_BT)
    advantages_BT = whitened_returns(returns_BT, counted_BT, variance=algorithm.variance)
    per_token = tuple(row[: len(values)] for row, values in zip(advantages_BT, logp, strict=True))
    means = [float(row.mean()) if len(row) else 0.0 for row in per_token]
    return Weighed(
        AdvantageResult(
            torch.tensor(means, dtype=torch.float64),
            result.valid_B,
            result.zero_variance_B,
            result.zero_variance_groups,
            result.groups,
        ),
        per_token,
        tuple(penalty),
    )


def _visible(result: AdvantageResult, rewards: Sequence[float | None]) -> AdvantageResult:
    broken_B = torch.tensor([reward is not None and not math.isfinite(reward) for reward in rewards])
    if not bool(broken_B.any()):
        return result
    return AdvantageResult(
        torch.where(broken_B, math.nan, result.advantages_B),
        result.valid_B | broken_B,
        result.zero_variance_B,
        result.zero_variance_groups,
        result.groups,
    )


@dataclass(frozen=True)
class Importance:
    """Importance weights of one step's samples, a tensor [T] each, and what they say about the engine.

    ``mean`` is of the weights as applied, ``largest`` of the plain ratio, ``capped`` the share of tokens whose ratio was
    above the cap.
    """

    weights: tuple[Tensor, ...]
    mean: float
    largest: float
    capped: float


def importance(
    correction: ImportanceCorrection, logp: Sequence[Tensor], engine_logp: Sequence[Sequence[float]]
) -> Importance | None:
    """Weights that correct for the engine's log-probs differing from the trainer's; None when the recipe asks for none.

    A number that is not finite stays visible in the weight.
    """
    if correction.mode == "none":
        return None
    lengths = [len(values) for values in logp]
    mask_BT, old_BT, engine_BT = (
        _mask(lengths),
        pad(logp),
        pad([torch.tensor(v, dtype=torch.float64) for v in engine_logp]),
    )
    level, cap = correction.level, correction.cap
    plain_BT = importance_weights(old_BT, engine_BT, mask_BT, mode="truncate", level=level, cap=_NO_CAP)
    applied_BT = importance_weights(old_BT, engine_BT, mask_BT, mode=correction.mode, level=level, cap=cap)
    tokens = max(1, int(mask_BT.sum()))
    return Importance(
        tuple(row[:length] for row, length in zip(applied_BT, lengths, strict=True)),
        mean=float(applied_BT.sum()) / tokens,
        largest=float(plain_BT.max()) if plain_BT.numel() else 0.0,
        capped=float(((plain_BT > cap) & mask_BT).sum()) / tokens,
    )


def mismatch_curves(logp: Sequence[Tensor], engine_logp: Sequence[Sequence[float]]) -> dict[str, float]:
    """Curves of the gap between the engine's and the trainer's log-probs of the sampled tokens, means over tokens.

    KL(engine || trainer), estimated on the engine's samples: k1 can be negative, k3 cannot.
    """
    engine = [torch.tensor(values, dtype=torch.float64) for values in engine_logp]
    stats = mismatch_stats(pad(logp), pad(engine), _mask([len(values) for values in logp]))
    tokens = max(1, stats.tokens)
    return {
        "sampling/logp_gap": stats.absolute / tokens,
        "sampling/logp_gap_max": stats.absolute_max,
        "sampling/mismatch_kl_k1": stats.kl_k1 / tokens,
        "sampling/mismatch_kl_k3": stats.kl_k3 / tokens,
    }


def importance_curves(found: Importance | None) -> dict[str, float]:
    """Curves of the importance weights; none where the recipe asks for no correction. Two names are TRL's."""
    if found is None:
        return {}
    return {
        "sampling/importance_sampling_ratio/mean": found.mean,
        "sampling/importance_sampling_ratio/max": found.largest,
        "sampling/importance_capped_share": found.capped,
    }


def pad(rows: Sequence[Tensor]) -> Tensor:
    """One tensor [B, T] of float64 from rows of any lengths, 0 behind each."""
    if not rows:
        return torch.zeros(0, 0, dtype=torch.float64)
    return torch.nn.utils.rnn.pad_sequence([row.double().cpu() for row in rows], batch_first=True)


def _mask(lengths: Sequence[int]) -> Tensor:
    return torch.arange(max(lengths, default=0)) < torch.tensor(list(lengths), dtype=torch.long)[:, None]
