"""The input embedding of a tied model, with its gradient scattered into the head's buffer.

PyTorch's own embedding gives a dense [V, H] gradient, which autograd then adds to the one in ``weight.grad``: for a tied
model a second copy of the largest gradient there is. Here the rows of the micro-batch are added to the given buffer.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


class _Embed(torch.autograd.Function):
    """Look up rows; in the backward add their gradients to the buffer and report none for the weight."""

    @staticmethod
    def forward(ctx: Any, weight_VH: Tensor, ids: Tensor, weight_grad_VH: Tensor) -> Tensor:
        # Kept outside save_for_backward: the buffer is changed in place between forward and backward, by design.
        ctx.ids, ctx.weight_grad_VH = ids, weight_grad_VH
        return functional.embedding(ids, weight_VH)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, None, None]:
        # Summed per word first: a word that occurs a thousand times is one addition to a bfloat16 row, not a thousand
        # roundings, and no two additions meet, so the result does not depend on their order.
        buffer: Tensor = ctx.weight_grad_VH
        words_U, place = torch.unique(ctx.ids, return_inverse=True)
        sums_UH = torch.ops.aten.embedding_dense_backward(grad, place, words_U.numel(), -1, False)
        buffer.index_add_(0, words_U, sums_UH.to(buffer.dtype))
        return None, None, None


def scattered_embedding(weight_VH: Tensor, ids: Tensor, weight_grad_VH: Tensor) -> Tensor:
    """Embed ``ids`` so that the backward adds to ``weight_grad_VH`` in place, in its dtype, and nothing to ``weight.grad``.

    Args:
        weight_VH: the embedding, which must require a gradient.
        ids: int64 of any shape.
        weight_grad_VH: the buffer also given to :func:`core.rl.chunked.chunked_backward`; may be ``weight_VH.grad``.

    Returns:
        [..., H] with a graph; pass it to the body as its input embeddings.

    Raises:
        ValueError: when the weight needs no gradient or the buffer has another shape.
    """
    if not weight_VH.requires_grad:
        raise ValueError("weight_VH must require a gradient, otherwise the backward never reaches the buffer")
    if weight_grad_VH.shape != weight_VH.shape:
        expected, found = tuple(weight_VH.shape), tuple(weight_grad_VH.shape)
        raise ValueError(f"weight_grad_VH must have the shape of weight_VH, {expected}, got {found}")
    out: Tensor = _Embed.apply(weight_VH, ids, weight_grad_VH)  # type: ignore[no-untyped-call]
    return out
