"""Agreement with TRL's own loss code on the same log-probs: values and gradients of every loss type both know.

TRL's method runs as published on a stand-in for its trainer that supplies log-probs and switches. Importing it takes many
seconds, so these tests are marked slow; the float64 oracle in test_chunked.py covers the same formulas without it.
"""

from collections import defaultdict
from types import SimpleNamespace

import pytest
import torch

from core.rl.advantages import grpo
from core.rl.objective import Objective, TokenTerms, policy_loss, token_weights

pytestmark = pytest.mark.slow
LENGTHS, WIDTH, NORM = (1, 3, 4, 8, 2, 9), 9, 12


def tensors():
    generator = torch.Generator().manual_seed(5)
    mask = torch.arange(WIDTH)[None, :] < torch.tensor(LENGTHS)[:, None]
    shape = (len(LENGTHS), WIDTH)
    logp, noise_old, noise_ref, noise_is = (torch.randn(shape, generator=generator).double() for _ in range(4))
    advantage = grpo(torch.tensor([1.0, 0, 0, 1, 0, 0]), torch.tensor([0, 0, 0, 1, 1, 1])).advantages_B
    logp = logp - 3
    return mask, logp, logp + 0.8 * noise_old, logp + 0.5 * noise_ref, noise_is.abs(), advantage


def trl_loss(loss_type, *, level="token", beta=0.0, delta=None, use_is=False, entropy_coef=0.0):
    """TRL's loss, its gradients in log-prob and entropy, and its clip metrics."""
    trainer = pytest.importorskip("trl.trainer.grpo_trainer").GRPOTrainer
    mask, logp, old, ref, weights, advantage = tensors()
    logp = logp.clone().requires_grad_()
    entropy = (logp.detach().abs() / 2).requires_grad_()
    stand_in = SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *_, **__: (logp, entropy, None),
        model=SimpleNamespace(training=True),
        accelerator=SimpleNamespace(
            num_processes=1, gather=lambda x: x, reduce=lambda x, reduction: x, sync_gradients=False
        ),
        args=SimpleNamespace(delta=delta, use_bias_correction_kl=False, steps_per_generation=1),
        _metrics={"train": defaultdict(list)},
        aux_loss_enabled=False,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        importance_sampling_level=level,
        beta=beta,
        loss_type=loss_type,
        epsilon_low=0.2,
        epsilon_high=0.28,
        use_vllm=use_is,
        vllm_importance_sampling_correction=use_is,
        current_gradient_accumulation_steps=1,
        max_completion_length=NORM,
        _entropy_bonus_enabled=entropy_coef != 0,
        use_adaptive_entropy=False,
        entropy_coef=entropy_coef,
    )
    ids = torch.zeros(mask.shape, dtype=torch.int64)
    inputs = {
        "prompt_ids": ids[:, :1],
        "prompt_mask": ids[:, :1] + 1,
        "completion_ids": ids,
        "completion_mask": mask.long(),
        "advantages": advantage,
        "old_per_token_logps": old,
        "ref_per_token_logps": ref,
        "importance_sampling_ratio": weights,
        "num_items_in_batch": mask.sum(),
    }
    loss = trainer._compute_loss(stand_in, None, inputs)
    grads = torch.autograd.grad(loss, (logp, entropy), allow_unused=True, materialize_grads=True)
    return loss, grads, stand_in._metrics["train"]


def our_loss(objective, *, use_is=False):
    mask, logp, old, ref, weights, advantage = tensors()
    rows = torch.arange(len(LENGTHS))[:, None].expand(mask.shape)
    terms = TokenTerms(
        weight_T=token_weights(mask, objective.aggregation, objective.norm_length).flatten(),
        advantage_T=advantage[rows].flatten(),
        logp_old_T=old.flatten(),
        ref_logp_T=ref.flatten(),
        is_weight_T=weights.flatten() if use_is else None,
        sequence_T=rows.flatten(),
    )
    logp = logp.clone().requires_grad_()
    entropy = (logp.detach().abs() / 2).requires_grad_()
    loss = policy_loss(logp.flatten(), entropy.flatten(), terms, objective).sum()
    return loss, torch.autograd.grad(loss, (logp, entropy), allow_unused=True, materialize_grads=True)


@pytest.mark.parametrize("beta", [0.0, 0.3])
@pytest.mark.parametrize("delta", [None, 1.5])
@pytest.mark.parametrize("use_is", [False, True])
@pytest.mark.parametrize(
    ("loss_type", "aggregation"),
    [
        ("grpo", "seq_mean_token_mean"),
        ("bnpo", "token_mean"),
        ("dapo", "token_mean"),
        ("dr_grpo", "seq_mean_token_sum_norm"),
    ],
)
def test_token_level_losses_equal_trls(loss_type, aggregation, use_is, delta, beta):
    theirs, their_grads, _ = trl_loss(loss_type, beta=beta, delta=delta, use_is=use_is)
    objective = Objective(aggregation=aggregation, norm_length=NORM, dual_clip=delta, kl_coef=beta)
    ours, our_grads = our_loss(objective, use_is=use_is)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(our_grads, their_grads, rtol=1e-12, atol=1e-14)


def test_the_sequence_level_loss_equals_trls():
    theirs, their_grads, _ = trl_loss("grpo", level="sequence")
    ours, our_grads = our_loss(Objective(kind="sequence", dual_clip=None))
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(our_grads, their_grads, rtol=1e-12, atol=1e-14)


def test_the_entropy_bonus_equals_trls_where_both_average_over_tokens():
    theirs, their_grads, _ = trl_loss("bnpo", entropy_coef=0.2)
    ours, our_grads = our_loss(Objective(aggregation="token_mean", dual_clip=None, entropy_coef=0.2))
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(our_grads, their_grads, rtol=1e-12, atol=1e-14)
    assert (their_grads[1] != 0).any()
