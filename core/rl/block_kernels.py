"""Triton kernels of a transformer layer's elementwise parts; :mod:`core.rl.blocks` launches them and says what they mean."""

# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, PLR0917
# Triton's language is not Python's: types of its values are the compiler's, so a type checker has nothing to read here.

import triton
import triton.language as tl


@triton.jit
def norm_kernel(x, delta, weight, summed, out, scales, width, eps, HAS_DELTA: tl.constexpr, BLOCK: tl.constexpr):
    """One row: ``summed = x + delta``, ``out = weight * round(summed / rms)``, and the inverse rms."""
    row = tl.program_id(0).to(tl.int64) * width
    lanes = tl.arange(0, BLOCK)
    inside = lanes < width
    value = tl.load(x + row + lanes, mask=inside, other=0.0).to(tl.float32)
    if HAS_DELTA:
        value += tl.load(delta + row + lanes, mask=inside, other=0.0).to(tl.float32)
        rounded = value.to(summed.dtype.element_ty)
        tl.store(summed + row + lanes, rounded, mask=inside)
        value = rounded.to(tl.float32)
    scale = tl.rsqrt(tl.sum(value * value, axis=0) / width + eps)
    tl.store(scales + tl.program_id(0), scale)
    normed = (value * scale).to(out.dtype.element_ty).to(tl.float32)
    w = tl.load(weight + lanes, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row + lanes, (normed * w).to(out.dtype.element_ty), mask=inside)


@triton.jit
def norm_backward_kernel(
    x, weight, scales, grad_out, grad_sum, grad_x, partial, rows, width, HAS_SUM: tl.constexpr, BLOCK: tl.constexpr
):
    """Rows ``program, program + programs, ...``: gradient of the input, and this program's share of the weight's."""
    lanes = tl.arange(0, BLOCK)
    inside = lanes < width
    w = tl.load(weight + lanes, mask=inside, other=0.0).to(tl.float32)
    grad_w = tl.zeros([BLOCK], tl.float32)
    start = tl.program_id(0).to(tl.int64) * width
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        scale = tl.load(scales + row)
        normed = tl.load(x + start + lanes, mask=inside, other=0.0).to(tl.float32) * scale
        grad = tl.load(grad_out + start + lanes, mask=inside, other=0.0).to(tl.float32)
        grad_w += grad * normed
        grad *= w
        grad = scale * (grad - normed * (tl.sum(grad * normed, axis=0) / width))
        if HAS_SUM:
            grad += tl.load(grad_sum + start + lanes, mask=inside, other=0.0).to(tl.float32)
        tl.store(grad_x + start + lanes, grad.to(grad_x.dtype.element_ty), mask=inside)
        start += tl.num_programs(0).to(tl.int64) * width
    tl.store(partial + tl.program_id(0) * width + lanes, grad_w, mask=inside)


@triton.jit
def gate_kernel(gate, up, out, count, BLOCK: tl.constexpr):
    """``silu(gate) * up``."""
    lanes = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = lanes < count
    g = tl.load(gate + lanes, mask=inside, other=0.0).to(tl.float32)
    u = tl.load(up + lanes, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + lanes, (g * tl.sigmoid(g) * u).to(out.dtype.element_ty), mask=inside)


@triton.jit
def gate_backward_kernel(gate, up, grad, out, grad_up, count, BLOCK: tl.constexpr):
    """The product again into ``out``, the gradient of ``up``, and that of ``gate`` over ``grad``."""
    lanes = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = lanes < count
    g = tl.load(gate + lanes, mask=inside, other=0.0).to(tl.float32)
    u = tl.load(up + lanes, mask=inside, other=0.0).to(tl.float32)
    d = tl.load(grad + lanes, mask=inside, other=0.0).to(tl.float32)
    s = tl.sigmoid(g)
    unit = g * s
    tl.store(out + lanes, (unit * u).to(out.dtype.element_ty), mask=inside)
    tl.store(grad_up + lanes, (d * unit).to(grad_up.dtype.element_ty), mask=inside)
    tl.store(grad + lanes, (d * u * s * (1.0 + g * (1.0 - s))).to(grad.dtype.element_ty), mask=inside)


@triton.jit
def rotate_kernel(x, out, cos, sin, heads, half, positions, sign, HEADS: tl.constexpr, HALF: tl.constexpr):
    """One token, all heads: ``(a, b) -> (a cos - sign b sin, b cos + sign a sin)`` for the halves a, b of a head."""
    token = tl.program_id(0).to(tl.int64)
    head, lane = tl.arange(0, HEADS)[:, None], tl.arange(0, HALF)[None, :]
    inside = (head < heads) & (lane < half)
    place = token * heads * 2 * half + head * 2 * half + lane
    angle = (token % positions) * 2 * half + lane
    a = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(x + place + half, mask=inside, other=0.0).to(tl.float32)
    c = tl.load(cos + angle, mask=lane < half, other=0.0).to(tl.float32)
    s = tl.load(sin + angle, mask=lane < half, other=0.0).to(tl.float32) * sign
    tl.store(out + place, (a * c - b * s).to(out.dtype.element_ty), mask=inside)
    tl.store(out + place + half, (b * c + a * s).to(out.dtype.element_ty), mask=inside)
