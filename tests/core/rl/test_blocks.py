"""Layer parts against plain PyTorch and autograd in float64; the kernels on a card or in Triton's interpreter.

The eager versions run here always; the kernels where there is a card, or with ``TRITON_INTERPRET=1`` where Triton is.
"""

import os

import pytest
import torch
from torch.nn import functional

from core.rl import blocks

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
EAGER = pytest.param("eager")
KERNELS = pytest.param("kernels", marks=[] if INTERPRETED else [pytest.mark.gpu])
BOTH = pytest.mark.parametrize("device", [EAGER, KERNELS], indirect=True)


@pytest.fixture
def device(request, monkeypatch):
    if request.param == "eager":
        monkeypatch.setattr(blocks, "usable", lambda _: False)
        return "cpu"
    monkeypatch.setattr(blocks, "usable", lambda tensor: tensor.dtype != torch.float64)
    return "cpu" if INTERPRETED else "cuda"


def normal(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def compare(function, exact, inputs, device, rounding=1e-5):
    """Outputs and gradients of ``function`` in float32 against ``exact`` in float64."""
    narrow = [value.float().to(device).requires_grad_() for value in inputs]
    wide = [value.clone().requires_grad_() for value in inputs]
    outputs, expected = function(*narrow), exact(*wide)
    grads = [normal(*value.shape, seed=90 + place) for place, value in enumerate(expected)]
    torch.autograd.backward(outputs, [grad.float().to(device) for grad in grads])
    torch.autograd.backward(expected, grads)
    for found, wanted in zip(outputs, expected, strict=True):
        torch.testing.assert_close(found.detach().cpu().double(), wanted.detach(), rtol=rounding, atol=rounding)
    for found, wanted in zip(narrow, wide, strict=True):
        torch.testing.assert_close(found.grad.cpu().double(), wanted.grad, rtol=10 * rounding, atol=10 * rounding)


@BOTH
@pytest.mark.parametrize("width", [5, 64])
def test_the_norm_and_its_sum_are_exact(device, width):
    def exact(x, delta, weight):
        summed = x + delta
        return summed, weight * summed * torch.rsqrt(summed.square().mean(-1, keepdim=True) + 1e-6)

    inputs = [normal(3, 7, width, seed=1), normal(3, 7, width, seed=2), normal(width, seed=3)]
    compare(lambda x, d, w: blocks.add_rms_norm(x, d, w, 1e-6), exact, inputs, device)
    compare(
        lambda x, w: (blocks.rms_norm(x, w, 1e-6),),
        lambda x, w: exact(x, torch.zeros_like(x), w)[1:],
        inputs[::2],
        device,
    )


@BOTH
@pytest.mark.parametrize("rows", [1, 2])
def test_rotations_turn_each_pair_by_its_angle(device, rows):
    angle = normal(rows, 5, 4, seed=5).repeat(1, 1, 2)
    cos, sin = angle.cos(), angle.sin()

    def exact(x):
        first, second = x[..., :4], x[..., 4:]
        turned = torch.complex(first, second) * torch.polar(torch.ones_like(angle[..., :4]), angle[..., :4])[:, :, None]
        return (torch.cat([turned.real, turned.imag], -1),)

    def found(x):
        return (blocks.rotate(x, cos.float().to(x.device), sin.float().to(x.device)),)

    compare(found, exact, [normal(2, 5, 3, 8, seed=6)], device)


@BOTH
def test_the_gated_product_and_all_its_gradients_are_exact(device):
    def exact(gate, up, weight):
        return (functional.linear(functional.silu(gate) * up, weight),)

    inputs = [normal(2, 3, 600, seed=7), normal(2, 3, 600, seed=8), normal(4, 600, seed=9) / 24]
    compare(lambda *values: (blocks.gated_down(*values),), exact, inputs, device)


def test_a_frozen_weight_gets_no_gradient():
    gate, up = normal(3, 6, seed=1).requires_grad_(), normal(3, 6, seed=2).requires_grad_()
    weight = normal(2, 6, seed=3)
    blocks.gated_down(gate, up, weight).sum().backward()
    assert weight.grad is None
    assert gate.grad is not None
