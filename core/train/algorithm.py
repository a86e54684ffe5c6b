"""From the recipe's ``algorithm`` block to ``core.rl``'s pure functions. The only place where the two meet."""

from collections.abc import Sequence

import torch
from torch import Tensor

from core.recipes.algorithm import Algorithm
from core.rl import advantages
from core.rl.advantages import AdvantageResult
from core.rl.objective import Objective


def objective_of(algorithm: Algorithm) -> Objective:
    """Return the objective that ``algorithm`` names: gspo has sequence ratios, sft none, all others token ratios."""
    if algorithm.supervised:
        return Objective(kind="likelihood", aggregation=algorithm.aggregation)
    return Objective(
        kind="sequence" if algorithm.name == "gspo" else "token",
        clip_low=algorithm.clip_low,
        clip_high=algorithm.clip_high,
        dual_clip=algorithm.dual_clip,
        aggregation=algorithm.aggregation,
        norm_length=algorithm.norm_length,
        kl_coef=0.0 if algorithm.kl.in_reward else algorithm.kl.coef,
        kl_estimator=algorithm.kl.estimator,
        entropy_coef=algorithm.entropy_coef,
    )


def advantages_of(
    algorithm: Algorithm, rewards: Sequence[float | None], groups: Sequence[int], lengths: Sequence[int]
) -> AdvantageResult:
    """Return the advantages of one step's samples.

    A reward of None (no verdict could be had) leaves the sample out of every statistic. ``lengths`` are the numbers of tokens
    in the loss, which REINFORCE++ weights by: 0 for a sample that is masked there.
    """
    rewards_B = torch.tensor([float("nan") if reward is None else reward for reward in rewards], dtype=torch.float64)
    valid_B = torch.tensor([reward is not None for reward in rewards])
    groups_B = torch.tensor(groups)
    match algorithm.name:
        case "grpo" | "gspo":
            return advantages.grpo(rewards_B, groups_B, valid_B, std=algorithm.std, eps=algorithm.eps)
        case "rloo":
            return advantages.rloo(rewards_B, groups_B, valid_B)
        case "centered":
            return advantages.centered(rewards_B, groups_B, valid_B)
        case "reinforce_plus_plus":
            lengths_B: Tensor = torch.tensor(lengths)
            return advantages.reinforce_plus_plus(
                rewards_B, lengths_B, groups_B, valid_B, variance=algorithm.variance, baseline=algorithm.baseline
            )
        case "sft" | "noisy_sft":
            raise ValueError(f"{algorithm.name} has no advantages")
