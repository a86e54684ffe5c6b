"""The scattered embedding: torch's values and gradients, in the given buffer and nowhere else."""

import pytest
import torch

from core.rl.embedding import scattered_embedding


@pytest.mark.parametrize("buffer_dtype", [torch.float64, torch.float32])
def test_repeated_ids_add_to_the_buffer_as_torchs_embedding_does(buffer_dtype):
    weight = torch.randn(9, 4, dtype=torch.float64, requires_grad=True)
    ids = torch.tensor([[1, 1, 7], [0, 1, 8]])
    factor = torch.randn(2, 3, 4, dtype=torch.float64)
    (torch.nn.functional.embedding(ids, weight) * factor).sum().backward()
    expected, weight.grad = weight.grad, None
    buffer = torch.full((9, 4), 2.0, dtype=buffer_dtype)
    embedded = scattered_embedding(weight, ids, buffer)
    assert torch.equal(embedded, weight[ids])
    (embedded * factor).sum().backward()
    assert weight.grad is None
    torch.testing.assert_close(buffer - 2.0, expected.to(buffer_dtype), rtol=1e-5, atol=1e-6)


def test_the_buffer_may_be_the_weights_own_gradient():
    weight = torch.randn(9, 4, requires_grad=True)
    weight.grad = torch.zeros_like(weight)
    buffer = weight.grad
    scattered_embedding(weight, torch.tensor([3, 3]), buffer).sum().backward()
    assert weight.grad is buffer
    assert buffer[3].tolist() == [2.0] * 4
    assert buffer.sum() == 8.0


def test_a_frozen_weight_or_a_foreign_buffer_is_refused():
    with pytest.raises(ValueError, match="weight_VH must require a gradient"):
        scattered_embedding(torch.zeros(9, 4), torch.tensor([0]), torch.zeros(9, 4))
    with pytest.raises(ValueError, match="weight_grad_VH must have the shape"):
        scattered_embedding(torch.zeros(9, 4, requires_grad=True), torch.tensor([0]), torch.zeros(8, 4))
