"""Masters and moments in blocks through the card: the same numbers as AdamW, whatever the block size."""

import pytest
import torch

from core.rl import offload
from core.rl.offload import OffloadedAdamW
from core.rl.optim import AdamW

DEVICES = [pytest.param("cpu"), pytest.param("cuda", marks=pytest.mark.gpu)]
SHAPES = {"a": (7, 11), "b": (3,), "c": (64,)}


def weights(dtype, device):
    generator = torch.Generator().manual_seed(0)
    return {
        name: torch.randn(shape, generator=generator).to(device, dtype).requires_grad_()
        for name, shape in SHAPES.items()
    }


def steps(optimizer, count=4):
    generator = torch.Generator().manual_seed(1)
    results = []
    for number in range(count):
        for name, parameter in optimizer.parameters.items():
            gradient = torch.randn(parameter.shape, generator=generator).to(parameter)
            parameter.grad = None if (name, number) == ("b", 1) else gradient
        results.append(optimizer.step(1e-2 / (number + 1), max_grad_norm=1.0))
    return results


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("block", [5, 64, 1 << 20])
def test_weights_masters_and_moments_are_adamws(device, dtype, block, monkeypatch):
    monkeypatch.setattr(offload, "BLOCK_ELEMENTS", block)
    options = {"lr": 1e-2, "weight_decay": 0.1}
    plain = AdamW(weights(dtype, device).items(), **options)
    blocked = OffloadedAdamW(weights(dtype, device).items(), **options)
    assert steps(plain) == steps(blocked)
    for name, parameter in plain.parameters.items():
        torch.testing.assert_close(blocked.parameters[name], parameter, rtol=0, atol=0)
    expected = plain.state_tensors()
    expected |= {f"master.{name}": value for name, value in plain.masters.items()}
    found = blocked.state_tensors() | {f"master.{name}": value for name, value in blocked.masters.items()}
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        # Vectorised and remaining elements of a CPU kernel differ in the last bit where blocks cut them elsewhere.
        torch.testing.assert_close(found[name].cpu(), value.cpu(), rtol=3e-7, atol=1e-9, msg=name)


@pytest.mark.gpu
def test_the_state_is_page_locked_host_memory_and_survives_a_round_trip():
    optimizer = OffloadedAdamW(weights(torch.bfloat16, "cuda").items(), lr=1e-2)
    steps(optimizer)
    assert all(master.device.type == "cpu" for master in optimizer.masters.values())
    assert next(iter(optimizer.masters.values())).is_pinned()
    other = OffloadedAdamW(weights(torch.bfloat16, "cuda").items(), lr=1e-2)
    other.load_state_tensors({name: value.clone() for name, value in optimizer.state_tensors().items()})
    steps(optimizer, 1)
    steps(other, 1)
    for name, parameter in optimizer.parameters.items():
        assert torch.equal(other.parameters[name], parameter)


def test_a_gradient_that_is_not_finite_changes_nothing():
    optimizer = OffloadedAdamW(weights(torch.bfloat16, "cpu").items(), lr=1e-2)
    before = {name: value.clone() for name, value in optimizer.state_tensors().items()}
    for parameter in optimizer.parameters.values():
        parameter.grad = torch.full_like(parameter, float("nan"))
    assert not optimizer.step().applied
    for name, value in optimizer.state_tensors().items():
        assert torch.equal(value, before[name])
