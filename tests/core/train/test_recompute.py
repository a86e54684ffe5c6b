"""Recomputation changes memory only: the same gradients, and the layers named are the ones run again."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from core.rl.lean import make_lean
from core.train.recompute import checkpoint_layers
from tests.core.train.tiny import tiny_llama

PRODUCTS = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)


class Count(TorchDispatchMode):
    """Counts matrix products."""

    products = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.products += func in PRODUCTS
        return func(*args, **(kwargs or {}))


def run(count, *, lean):
    """Gradients of two layers, and the products that their backward ran."""
    model = tiny_llama().train()
    if lean:
        assert make_lean(model.model) == 2
    checkpoint_layers(model.model, count)
    ids = torch.arange(12).reshape(2, 6)
    hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state
    with Count() as backward:
        hidden.backward(torch.linspace(-1, 1, hidden.numel(), dtype=hidden.dtype).reshape(hidden.shape))
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}, backward.products


@pytest.mark.parametrize("lean", [False, True])
@pytest.mark.parametrize(("count", "again"), [(0, 0), (1, 6), (2, 12), (None, 12)])
def test_gradients_stay_the_same_and_only_checkpointed_layers_run_again(count, again, lean):
    expected, _ = run(0, lean=lean)
    gradients, products = run(count, lean=lean)
    for name, value in expected.items():
        assert torch.equal(gradients[name], value), name
    # Two layers of seven products, each with two in its backward. Of a layer run again the seventh is left out: it is
    # the last, and no gradient needs what it gives.
    assert products == 2 * 7 * 2 + again


def test_counts_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="between 0 and the body's 2 layers, got 3"):
        checkpoint_layers(tiny_llama().model, 3)
    with pytest.raises(ValueError, match="no layers that can be checkpointed"):
        checkpoint_layers(torch.nn.Linear(2, 2), 0)
