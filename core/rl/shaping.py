"""A KL penalty in the reward instead of the loss: per token, as a sum per sample, and as returns.

The penalty is taken from the log-probs at the rollout's weights and is a number like any reward: no gradient passes through
it. What uses it follows verl (``apply_kl_penalty``): advantages of a whole sample see the reward minus the sum of the sample's
penalties; REINFORCE++ without a baseline sees at each token the reward minus the penalties from that token on.

All functions take padded [B, T] tensors, compute in float64 and are 0 outside the mask.
"""

import torch
from torch import Tensor

from core.rl.objective import KlEstimator, kl_penalty


def kl_penalties(
    logp_old_BT: Tensor, ref_logp_BT: Tensor, mask_BT: Tensor, *, coef: float, estimator: KlEstimator = "k1"
) -> Tensor:
    """``coef`` times the estimate of KL(policy || reference) at each token, float64 [B, T].

    Both log-probs are at the sampling temperature; the log-ratio is clamped as in the loss. verl further clamps k3 to 10.
    """
    mask = mask_BT.bool()
    old_BT, ref_BT = (torch.where(mask, values.double(), 0.0) for values in (logp_old_BT, ref_logp_BT))
    return torch.where(mask, coef * kl_penalty(old_BT, ref_BT, estimator), 0.0)


def returns_to_go(rewards_B: Tensor, penalties_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Undiscounted return at each token, float64 [B, T]: the sample's reward minus the penalties from that token on.

    The reward is paid at the last token, so every token of the sample sees all of it (verl's
    ``compute_reinforce_plus_plus_outcome_advantage`` with gamma 1).
    """
    mask = mask_BT.bool()
    penalties_BT = torch.where(mask, penalties_BT.double(), 0.0)
    remaining_BT = penalties_BT.flip(-1).cumsum(-1).flip(-1)
    return torch.where(mask, rewards_B.double()[:, None] - remaining_BT, 0.0)
