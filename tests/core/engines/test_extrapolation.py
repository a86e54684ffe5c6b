import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from core.engines.base import EngineError
from core.engines.extrapolation import checked_alpha, combine

LOGITS = st.floats(-1e4, 1e4, width=32) | st.just(-math.inf)
PAIRS = st.lists(st.tuples(LOGITS, LOGITS), min_size=1, max_size=40)
ALPHAS = st.floats(-4, 4, width=32)


def _combined(pairs, alpha):
    a, b = (torch.tensor([[pair[side] for pair in pairs]], dtype=torch.float32) for side in (0, 1))
    return a, b, combine(a, b, torch.tensor(alpha, dtype=torch.float32))


@given(PAIRS, st.sampled_from([0.0, 1.0]))
def test_at_0_and_1_every_finite_logit_is_bit_for_bit_the_checkpoints(pairs, alpha):
    a, b, mixed = _combined(pairs, alpha)
    both = torch.isfinite(a) & torch.isfinite(b)
    assert torch.equal(mixed[both], (b if alpha else a)[both])


@given(PAIRS, ALPHAS)
def test_minus_infinity_in_either_stays_and_nothing_becomes_nan(pairs, alpha):
    a, b, mixed = _combined(pairs, alpha)
    assert torch.equal(torch.isneginf(mixed), torch.isneginf(a) | torch.isneginf(b))
    assert not torch.isnan(mixed).any()


@given(PAIRS, ALPHAS)
def test_between_and_beyond_it_is_the_line_through_both(pairs, alpha):
    a, b, mixed = _combined(pairs, alpha)
    both = torch.isfinite(a) & torch.isfinite(b)
    start, end = a[both].double().numpy(), b[both].double().numpy()
    line = start + np.float64(np.float32(alpha)) * (end - start)
    largest = np.maximum(np.abs(start), np.abs(end))
    assert (np.abs(mixed[both].numpy() - line) <= 4e-6 * (1 + abs(alpha)) * (1 + largest)).all()


def test_the_plain_sum_would_not_give_b_back():
    """Why the form matters: a + (b - a) differs from b for a third of the logits, the form used for none."""
    a, b = torch.randn(2, 20_000, generator=torch.Generator().manual_seed(0)) * 10
    assert (a + (b - a) == b).float().mean() < 0.8
    assert torch.equal(combine(a, b, torch.tensor(1.0)), b)


def test_half_precision_logits_are_combined_in_fp32():
    a, b = torch.tensor([[1.0]], dtype=torch.bfloat16), torch.tensor([[1.0078125]], dtype=torch.bfloat16)
    mixed = combine(a, b, torch.tensor(1.5))
    assert mixed.dtype == torch.float32
    assert mixed.item() == 1.01171875  # lies between two bf16 numbers


def test_broken_logits_are_not_hidden():
    mixed = combine(torch.tensor([[math.nan, 1.0]]), torch.tensor([[0.0, 1.0]]), torch.tensor(0.5))
    assert math.isnan(mixed[0, 0].item())


@pytest.mark.parametrize("alpha", [math.nan, math.inf, -math.inf])
def test_alpha_must_be_finite(alpha):
    with pytest.raises(EngineError, match="finite"):
        checked_alpha(alpha)
