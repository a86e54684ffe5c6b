"""A transformer layer's elementwise parts, each one kernel forward and one backward, keeping the least for the backward.

Eager PyTorch keeps a float32 copy and three more of every norm's input, both halves of every rotation and four tensors of
the MLP's inner width. Here a norm keeps its input and one number per row, a rotation nothing, and the MLP only what its two
first products gave; the rest is computed again from those, elementwise, where the backward needs it.

On CUDA the work is done by :mod:`core.rl.block_kernels`, elsewhere by plain PyTorch with the same rounding. Attention and
matrix products are not here.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from core.rl.fused import usable

_ELEMENTS = 1024  # per program of an elementwise kernel
_NORM_PROGRAMS = (
    528  # of a norm's backward: four for each multiprocessor of the largest card, each with its share of rows
)


def rms_norm(x: Tensor, weight_H: Tensor, eps: float) -> Tensor:
    """``weight * (x / rms(x))`` along the last dimension, statistics in fp32, as Llama's and Qwen's norms round it."""
    return add_rms_norm(x, None, weight_H, eps)[1]


def add_rms_norm(x: Tensor, delta: Tensor | None, weight_H: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The residual stream ``x + delta`` and its norm; ``delta`` None means that nothing is added and ``x`` is returned."""
    if delta is None:
        out: Tensor = _Norm.apply(x, weight_H, eps)  # type: ignore[no-untyped-call]
        return x, out
    summed, normed = _AddNorm.apply(x, delta, weight_H, eps)  # type: ignore[no-untyped-call]
    return summed, normed


def rotate(x_BSNd: Tensor, cos_BSd: Tensor, sin_BSd: Tensor) -> Tensor:
    """Rotary embedding (Su et al. 2021) of halves: ``x cos + (-x2, x1) sin`` per head; B of the angles is 1 or that of x.

    The angles of both halves of a head must be the same, as in Llama and Qwen.
    """
    out: Tensor = _Rotate.apply(x_BSNd, cos_BSd, sin_BSd)  # type: ignore[no-untyped-call]
    return out


def gated_down(gate: Tensor, up: Tensor, down_weight_HI: Tensor) -> Tensor:
    """``(silu(gate) * up) @ down_weight.T``, keeping ``gate`` and ``up`` only.

    Under checkpointing the last product is not run a second time: nothing it gives or keeps is needed by a gradient.
    """
    link: list[Tensor] = []
    product: Tensor = _Gate.apply(gate, up, down_weight_HI, link)  # type: ignore[no-untyped-call]
    out: Tensor = _Down.apply(product, down_weight_HI, link)  # type: ignore[no-untyped-call]
    return out


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight_H: Tensor, eps: float) -> Tensor:
        _, out, scale = _norm(x.contiguous(), None, weight_H, eps)
        ctx.save_for_backward(x, weight_H, scale)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight_H, scale = ctx.saved_tensors
        return *_norm_backward(x, weight_H, scale, grad, None), None


class _AddNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, delta: Tensor, weight_H: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        summed, out, scale = _norm(x.contiguous(), delta.contiguous(), weight_H, eps)
        ctx.save_for_backward(summed, weight_H, scale)
        return summed, out

    @staticmethod
    def backward(ctx: Any, grad_sum: Tensor, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        summed, weight_H, scale = ctx.saved_tensors
        grad_x, grad_weight = _norm_backward(summed, weight_H, scale, grad, grad_sum)
        return grad_x, grad_x, grad_weight, None


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _rotated(x.contiguous(), cos, sin, 1.0)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        # A rotation's transpose is the rotation back.
        cos, sin = ctx.saved_tensors
        return _rotated(grad.contiguous(), cos, sin, -1.0), None, None


class _Gate(torch.autograd.Function):
    """``silu(gate) * up``; its backward is also given the output's gradient by :class:`_Down`, for the weight's gradient."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor, down_weight_HI: Tensor, link: list[Tensor]) -> Tensor:
        ctx.save_for_backward(gate, up)
        ctx.link, ctx.weight_grad = link, ctx.needs_input_grad[2]
        return _gated(gate.contiguous(), up.contiguous())

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor | None, None]:
        gate, up = ctx.saved_tensors
        grad_out = ctx.link.pop()
        product, grad_gate, grad_up = _gated_backward(gate.contiguous(), up.contiguous(), grad)
        weight_grad = grad_out.flatten(0, -2).T @ product.flatten(0, -2) if ctx.weight_grad else None
        return grad_gate, grad_up, weight_grad, None


class _Down(torch.autograd.Function):
    """The MLP's last product. The weight is held outside ``save_for_backward``, so that checkpointing sees nothing here."""

    @staticmethod
    def forward(ctx: Any, product: Tensor, weight_HI: Tensor, link: list[Tensor]) -> Tensor:
        ctx.weight, ctx.link = weight_HI, link
        return functional.linear(product, weight_HI)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        ctx.link.append(grad)
        return grad @ ctx.weight, None, None


def _norm(x: Tensor, delta: Tensor | None, weight_H: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Sum, norm, and the inverse rms of each row."""
    if not usable(x):
        wide = torch.promote_types(x.dtype, torch.float32)
        summed = x if delta is None else x + delta
        scale = torch.rsqrt(summed.to(wide).square().mean(-1, keepdim=True) + eps)
        return summed, weight_H * (summed.to(wide) * scale).to(x.dtype), scale.squeeze(-1)
    from core.rl.block_kernels import norm_kernel

    width = x.shape[-1]
    out, scale = torch.empty_like(x), torch.empty(x.shape[:-1], dtype=torch.float32, device=x.device)
    summed = x if delta is None else torch.empty_like(x)
    norm_kernel[(scale.numel(),)](
        x,
        x if delta is None else delta,
        weight_H,
        summed,
        out,
        scale,
        width,
        eps,
        HAS_DELTA=delta is not None,
        BLOCK=_power_of_two(width),
    )
    return summed, out, scale


def _norm_backward(
    x: Tensor, weight_H: Tensor, scale: Tensor, grad: Tensor, grad_sum: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Gradients of the input (with ``grad_sum`` added) and of the weight."""
    if not usable(x):
        normed = x.to(scale.dtype) * scale[..., None]
        weight_grad = (grad * normed).flatten(0, -2).sum(0)
        inner = grad.to(scale.dtype) * weight_H
        grad_x = scale[..., None] * (inner - normed * (inner * normed).mean(-1, keepdim=True))
        return (grad_x if grad_sum is None else grad_x + grad_sum).to(x.dtype), weight_grad.to(weight_H.dtype)
    from core.rl.block_kernels import norm_backward_kernel

    x, grad, width, rows = x.contiguous(), grad.contiguous(), x.shape[-1], scale.numel()
    programs = min(rows, _NORM_PROGRAMS)
    grad_x, shares = torch.empty_like(x), torch.empty(programs, width, dtype=torch.float32, device=x.device)
    norm_backward_kernel[(programs,)](
        x,
        weight_H,
        scale,
        grad,
        grad if grad_sum is None else grad_sum.contiguous(),
        grad_x,
        shares,
        rows,
        width,
        HAS_SUM=grad_sum is not None,
        BLOCK=_power_of_two(width),
    )
    return grad_x, shares.sum(0).to(weight_H.dtype)


def _rotated(x_BSNd: Tensor, cos_BSd: Tensor, sin_BSd: Tensor, sign: float) -> Tensor:
    half = x_BSNd.shape[-1] // 2
    if not usable(x_BSNd):
        first, second = x_BSNd[..., :half], x_BSNd[..., half:]
        cos, sin = cos_BSd[..., None, :half], sin_BSd[..., None, :half] * sign
        return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)
    from core.rl.block_kernels import rotate_kernel

    out, heads = torch.empty_like(x_BSNd), x_BSNd.shape[-2]
    cos_BSd, sin_BSd = cos_BSd.contiguous(), sin_BSd.contiguous()
    rotate_kernel[(x_BSNd.shape[0] * x_BSNd.shape[1],)](
        x_BSNd,
        out,
        cos_BSd,
        sin_BSd,
        heads,
        half,
        cos_BSd.numel() // (2 * half),
        sign,
        HEADS=_power_of_two(heads),
        HALF=_power_of_two(half),
    )
    return out


def _gated(gate: Tensor, up: Tensor) -> Tensor:
    if not usable(gate):
        return functional.silu(gate) * up
    from core.rl.block_kernels import gate_kernel

    out = torch.empty_like(gate)
    gate_kernel[(-(-gate.numel() // _ELEMENTS),)](gate, up, out, gate.numel(), BLOCK=_ELEMENTS)
    return out


def _gated_backward(gate: Tensor, up: Tensor, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The product again, and the gradients of gate (on CUDA over the memory of ``grad``) and up."""
    if not usable(gate):
        unit, share = functional.silu(gate), torch.sigmoid(gate)
        return unit * up, grad * up * share * (1.0 + gate * (1.0 - share)), grad * unit
    from core.rl.block_kernels import gate_backward_kernel

    # Only _Down makes this gradient, for this call alone, so its memory is ours.
    grad, out, grad_up = grad.contiguous(), torch.empty_like(gate), torch.empty_like(up)
    gate_backward_kernel[(-(-gate.numel() // _ELEMENTS),)](gate, up, grad, out, grad_up, gate.numel(), BLOCK=_ELEMENTS)
    return out, grad, grad_up


def _power_of_two(count: int) -> int:
    return 1 << (count - 1).bit_length()
