"""What differs on a CUDA card: products that leave float32 logits, float32 buffers for half-precision heads, peak memory."""

import pytest
import torch

from core.rl.chunked import chunked_backward, chunked_logprobs
from core.rl.objective import Objective, TokenTerms
from core.rl.optim import AdamW

pytestmark = pytest.mark.gpu
TOKENS, VOCAB, HIDDEN, CHUNK = 4096, 151_936, 1024, 512


def case(dtype):
    generator = torch.Generator(device="cuda").manual_seed(0)
    hidden = torch.randn(TOKENS, HIDDEN, device="cuda", generator=generator).to(dtype)
    weight = (torch.randn(VOCAB, HIDDEN, device="cuda", generator=generator) * 0.05).to(dtype)
    targets = torch.randint(0, VOCAB, (TOKENS,), device="cuda", generator=generator)
    advantage = torch.randn(TOKENS, device="cuda", generator=generator)
    terms = TokenTerms(torch.full((TOKENS,), 1 / TOKENS, device="cuda"), advantage)
    return hidden, weight, targets, terms


@pytest.mark.parametrize("buffer_dtype", [torch.float32, torch.bfloat16])
def test_bfloat16_on_the_card_agrees_with_float64_and_keeps_its_memory(buffer_dtype):
    hidden, weight, targets, terms = case(torch.bfloat16)
    objective = Objective(entropy_coef=0.1)
    buffer = torch.zeros(VOCAB, HIDDEN, device="cuda", dtype=buffer_dtype)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result = chunked_backward(hidden, weight, targets, terms, objective, chunk=CHUNK, weight_grad_VH=buffer)
    peak = torch.cuda.max_memory_allocated() - before
    assert peak < 4.2 * CHUNK * VOCAB * 4 < TOKENS * VOCAB * 4

    exact = torch.zeros(VOCAB, HIDDEN, device="cuda", dtype=torch.float64)
    oracle = chunked_backward(
        hidden.double(), weight.double(), targets, terms, objective, chunk=CHUNK, weight_grad_VH=exact
    )
    # Logits are never rounded to bfloat16, whose steps are 0.03 near 5.
    torch.testing.assert_close(result.logp_T.double(), oracle.logp_T, rtol=0, atol=1e-4)
    torch.testing.assert_close(result.entropy_T.double(), oracle.entropy_T, rtol=0, atol=1e-3)
    # 4,096 tokens hit few of 151,936 words twice, so most of an error is the rounding of single terms.
    assert float((buffer.double() - exact).norm() / exact.norm()) < 5e-3
    grad = result.grad_hidden_TH.double()
    assert float((grad - oracle.grad_hidden_TH).norm() / oracle.grad_hidden_TH.norm()) < 5e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_first_on_policy_ratio_is_exactly_one_on_the_card(dtype):
    hidden, weight, targets, terms = case(dtype)
    old, _ = chunked_logprobs(hidden, weight, targets, temperature=0.6, chunk=CHUNK)
    given = TokenTerms(terms.weight_T, terms.advantage_T, logp_old_T=old)
    result = chunked_backward(
        hidden, weight, targets, given, Objective(), temperature=0.6, chunk=CHUNK, weight_grad_VH=None
    )
    assert torch.equal(result.logp_T, old)
    assert (result.stats.ratio_max, result.stats.ratio) == (1.0, float(TOKENS))


def test_bfloat16_weights_on_the_card_move_through_their_masters():
    weight = torch.ones(1000, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    optimizer = AdamW([("w", weight)], lr=6e-4)
    for _ in range(100):
        weight.grad = torch.full_like(weight, 0.5)
        assert optimizer.step(max_grad_norm=1.0).applied
    torch.testing.assert_close(optimizer.masters["w"], torch.full((1000,), 0.94, device="cuda"), rtol=0, atol=1e-4)
