"""Recomputation changes memory only: the same gradients, and the operations named are the ones run again."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from core.train.recompute import Recompute, apply
from tests.core.train.tiny import tiny_llama


class Count(TorchDispatchMode):
    """Counts matrix products and sigmoid-like units that are run."""

    def __init__(self):
        super().__init__()
        self.products = self.units = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.products += func in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
        self.units += func is torch.ops.aten.silu.default
        return func(*args, **(kwargs or {}))


def run(recompute):
    """Gradients, products and activations of forward and backward of two layers."""
    model = tiny_llama().train()
    apply(model.model, recompute)
    ids = torch.arange(12).reshape(2, 6)
    hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state
    with Count() as backward:
        hidden.backward(torch.linspace(-1, 1, hidden.numel(), dtype=hidden.dtype).reshape(hidden.shape))
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}, backward


KEEP_ALL = Recompute(0)
PRODUCTS = 2 * 7 * 2  # two layers of seven products, each with two in its backward


@pytest.mark.parametrize(
    ("recompute", "products", "units"),
    [
        (KEEP_ALL, 0, 0),
        (Recompute(1), 6, 1),  # the seventh is the last operation that a gradient could ask for, so it is not reached
        (Recompute(2), 12, 2),
        (Recompute(0, 2), 0, 2),
        (Recompute(1, 1), 6, 2),
    ],
)
def test_gradients_stay_the_same_and_only_what_was_not_kept_runs_again(recompute, products, units):
    expected, _ = run(KEEP_ALL)
    gradients, count = run(recompute)
    for name, value in expected.items():
        assert torch.equal(gradients[name], value), name
    assert (count.products - PRODUCTS, count.units) == (products, units)


def test_counts_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="at most 2 layers"):
        apply(tiny_llama().model, Recompute(1, 2))
    with pytest.raises(ValueError, match="no layers that can be checkpointed"):
        apply(torch.nn.Linear(2, 2), Recompute(0))
