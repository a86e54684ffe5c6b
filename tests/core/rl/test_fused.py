"""The Triton kernels against the eager path and autograd: on a card, or anywhere in Triton's interpreter.

``TRITON_INTERPRET=1`` runs them on the CPU where Triton is installed; without it they need a card.
"""

import math
import os

import pytest
import torch

from core.rl import fused, head
from core.rl.objective import LOG_RATIO_LIMIT, Objective, TokenTerms, policy_loss

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
pytestmark = [] if INTERPRETED else [pytest.mark.gpu]
DEVICE = "cpu" if INTERPRETED else "cuda"
ROWS, VOCAB, HIDDEN = 5, 9001, 16  # more than two blocks of words, the last one short


def example(dtype=torch.bfloat16, seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(ROWS, VOCAB, generator=generator) * 4
    targets = torch.randint(0, VOCAB, (ROWS,), generator=generator)
    targets[0], targets[1] = 0, VOCAB - 1
    coefs = torch.randn(2, ROWS, generator=generator)
    return logits.to(DEVICE), targets.to(DEVICE), coefs.to(DEVICE)


def exact(logits, targets, temperature):
    log_p = (logits.double() / temperature).log_softmax(-1)
    entropy = -(log_p.exp() * log_p).sum(-1)
    return log_p, log_p.gather(1, targets[:, None])[:, 0], entropy


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_statistics_are_those_of_the_float64_softmax(temperature):
    logits, targets, _ = example()
    logp, entropy, norm = fused.statistics(logits, targets, temperature)
    _, logp_exact, entropy_exact = exact(logits, targets, temperature)
    torch.testing.assert_close(logp.double(), logp_exact, rtol=2e-6, atol=2e-6)
    torch.testing.assert_close(entropy.double(), entropy_exact, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(norm.double(), (logits.double() / temperature).logsumexp(-1), rtol=2e-6, atol=2e-6)


def test_a_vocabulary_below_one_block_and_large_logits_stay_finite():
    logits = torch.tensor([[1e4, -1e4, 0.0], [-5e3, -5e3, -5e3]], device=DEVICE)
    logp, entropy, _ = fused.statistics(logits, torch.tensor([0, 2], device=DEVICE), 1.0)
    assert logp.tolist() == pytest.approx([0.0, -math.log(3)], abs=1e-3)
    assert entropy.tolist() == pytest.approx([0.0, math.log(3)], abs=2e-3)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_logit_that_is_not_finite_shows(value):
    logits, targets, _ = example()
    logits[2, 5000] = value
    logp, entropy, _ = fused.statistics(logits, targets, 1.0)
    assert not math.isfinite(float(logp[2]))
    assert not math.isfinite(float(entropy[2]))
    assert bool(logp[[0, 1, 3, 4]].isfinite().all())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("with_entropy", [False, True])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_the_gradient_takes_the_logits_memory_and_is_exact_to_its_dtype(dtype, with_entropy, temperature):
    logits, targets, (coef_logp, coef_entropy) = example()
    log_p, _, entropy_exact = exact(logits, targets, temperature)
    hit = torch.nn.functional.one_hot(targets, VOCAB).double()
    expected = coef_logp.double()[:, None] * (hit - log_p.exp())
    if with_entropy:
        expected -= coef_entropy.double()[:, None] * log_p.exp() * (log_p + entropy_exact[:, None])
    expected /= temperature
    _, entropy, norm = fused.statistics(logits, targets, temperature)
    address = logits.data_ptr()
    grad = fused.gradient_(
        logits,
        targets,
        norm_C=norm,
        entropy_C=entropy,
        coef_logp_C=coef_logp,
        coef_entropy_C=coef_entropy if with_entropy else None,
        temperature=temperature,
        dtype=dtype,
    )
    assert (grad.data_ptr(), grad.dtype, grad.shape) == (address, dtype, (ROWS, VOCAB))
    # A card rounds to nearest; the interpreter cuts off. log p of 20 in float32 leaves 2e-6 in p.
    bfloat16 = 2.0**-7 if INTERPRETED else 2.0**-8
    rounding = bfloat16 if dtype == torch.bfloat16 else 2e-5
    torch.testing.assert_close(grad.double(), expected, rtol=rounding, atol=1e-6)


OBJECTIVES = [
    Objective(),
    Objective(dual_clip=None),
    Objective(kl_coef=0.3, kl_estimator="k1"),
    Objective(kl_coef=0.3, kl_estimator="k2", entropy_coef=0.1),
    Objective(kl_coef=0.3, kl_estimator="k3", dual_clip=1.5),
    Objective(entropy_coef=-0.2, clip_low=0.0, clip_high=0.0),
]


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("given", ["nothing", "old", "old and weights"])
def test_closed_form_derivatives_equal_autograd(objective, given):
    generator = torch.Generator().manual_seed(3)
    size = 700
    logp = -torch.rand(size, generator=generator) * 8
    # Far, near and equal old log-probs, so that every branch and the clamp are met.
    moved = torch.cat([torch.randn(300, generator=generator), torch.zeros(200), torch.full((100,), 30.0)])
    old = logp - torch.cat([moved, torch.full((100,), -30.0)])
    drift = torch.cat([torch.randn(400, generator=generator) * 3, torch.randn(300, generator=generator) * 0.02])
    advantage = torch.randn(size, generator=generator)
    advantage[::7] = 0.0
    terms = TokenTerms(
        weight_T=torch.rand(size, generator=generator) + 0.01,
        advantage_T=advantage,
        logp_old_T=None if given == "nothing" else old,
        ref_logp_T=logp - drift,
        is_weight_T=torch.rand(size, generator=generator) if "weights" in given else None,
    ).to(torch.float32, torch.device(DEVICE))
    entropy = torch.rand(size, generator=generator)
    found = fused.coefficients(logp.to(DEVICE), entropy.to(DEVICE), terms, objective)
    logp_64, entropy_64 = (value.to(DEVICE).double().requires_grad_() for value in (logp, entropy))
    # The same numbers in float64: the differences must be those of the float32 inputs.
    loss = policy_loss(logp_64, entropy_64, terms.to(torch.float64, torch.device(DEVICE)), objective)
    grads = torch.autograd.grad(loss.sum(), (logp_64, entropy_64), allow_unused=True, materialize_grads=True)
    torch.testing.assert_close(found[0].double(), loss.detach(), rtol=2e-5, atol=2e-6)
    torch.testing.assert_close(found[1].double(), grads[0], rtol=2e-5, atol=2e-6)
    if objective.entropy_coef:
        torch.testing.assert_close(found[2].double(), grads[1], rtol=1e-6, atol=1e-7)


def test_the_kernels_clamp_where_the_objective_does():
    from core.rl.kernels import LIMIT

    assert LIMIT.value == LOG_RATIO_LIMIT


def test_sequence_objectives_are_refused():
    terms = TokenTerms(torch.ones(2), torch.ones(2), sequence_T=torch.zeros(2, dtype=torch.long))
    with pytest.raises(ValueError, match="kind is 'sequence'"):
        fused.coefficients(torch.zeros(2), torch.zeros(2), terms, Objective(kind="sequence"))


def test_float64_and_the_host_take_the_eager_path():
    assert not fused.usable(torch.zeros(1, dtype=torch.float64, device=DEVICE))
    assert not fused.usable(torch.zeros(1))
    assert head.compute_dtype(torch.bfloat16) == torch.float32
