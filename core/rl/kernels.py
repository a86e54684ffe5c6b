"""Triton kernels of the head: softmax statistics, the objective's derivatives, and the gradient over the logits.

Each does one thing in fp32 and knows no shapes beyond a row of the vocabulary; :mod:`core.rl.fused` launches them and
says what they mean. Nothing here is particular to one generation of cards: plain loads, stores and block reductions.
"""

# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202, PLR0917
# Triton's language is not Python's: types of its values are the compiler's, so a type checker has nothing to read here.

import triton
import triton.language as tl

LIMIT = tl.constexpr(20.0)  # core.rl.objective.LOG_RATIO_LIMIT; a test holds the two together
LOWEST = tl.constexpr(-3.0e38)  # finite, so that a lane that has seen nothing gives exp(0), not exp(inf - inf)


@triton.jit
def statistics_kernel(
    logits, stride, targets, logp_out, entropy_out, norm_out, vocab, inverse_temperature, BLOCK: tl.constexpr
):
    """One row: log-sum-exp, log-prob of the target, entropy, in a single reading (online softmax, lane by lane)."""
    row = tl.program_id(0).to(tl.int64)
    start_of_row = logits + row * stride
    lanes = tl.arange(0, BLOCK)
    peak = tl.full([BLOCK], LOWEST, tl.float32)
    mass = tl.zeros([BLOCK], tl.float32)
    moment = tl.zeros([BLOCK], tl.float32)
    for start in range(0, vocab, BLOCK):
        inside = start + lanes < vocab
        x = tl.load(start_of_row + start + lanes, mask=inside, other=0.0).to(tl.float32)
        x = tl.where(inside, x * inverse_temperature, LOWEST)
        higher = tl.maximum(peak, x)
        shrink = tl.exp(peak - higher)
        weight = tl.where(inside, tl.exp(x - higher), 0.0)
        mass = mass * shrink + weight
        moment = moment * shrink + tl.where(inside, x * weight, 0.0)
        peak = higher
    top = tl.max(peak, axis=0)
    shrink = tl.exp(peak - top)
    total = tl.sum(mass * shrink, axis=0)
    norm = top + tl.log(total)
    target = tl.load(targets + row)
    at_target = tl.load(start_of_row + target).to(tl.float32) * inverse_temperature
    tl.store(norm_out + row, norm)
    tl.store(logp_out + row, at_target - norm)
    tl.store(entropy_out + row, norm - tl.sum(moment * shrink, axis=0) / total)


@triton.jit
def gradient_kernel(
    logits,
    stride,
    out,
    out_stride,
    targets,
    norms,
    entropies,
    coef_logp,
    coef_entropy,
    vocab,
    inverse_temperature,
    WITH_ENTROPY: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One row: gradient of the loss in the logits, written over them (``out`` is the same memory, maybe narrower).

    An element of ``out`` never lies behind the logits it replaces, and the barrier holds every store of a block back
    until the whole block was read, so nothing unread is overwritten.
    """
    row = tl.program_id(0).to(tl.int64)
    start_of_row = logits + row * stride
    out_row = out + row * out_stride
    lanes = tl.arange(0, BLOCK)
    norm = tl.load(norms + row)
    target = tl.load(targets + row)
    # The logits were multiplied by 1/temperature, so their gradient is too.
    a = tl.load(coef_logp + row) * inverse_temperature
    if WITH_ENTROPY:
        b = tl.load(coef_entropy + row) * inverse_temperature
        entropy = tl.load(entropies + row)
    for start in range(0, vocab, BLOCK):
        place = start + lanes
        inside = place < vocab
        x = tl.load(start_of_row + place, mask=inside, other=0.0).to(tl.float32)
        tl.debug_barrier()
        log_p = x * inverse_temperature - norm
        p = tl.exp(log_p)
        scale = -a
        if WITH_ENTROPY:
            scale = -a - b * (log_p + entropy)
        grad = p * scale + tl.where(place == target, a, 0.0)
        tl.store(out_row + place, grad.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _clamped(x):
    return tl.where(x > LIMIT, LIMIT, tl.where(x < -LIMIT, -LIMIT, x))  # a NaN stays one


@triton.jit
def _within(x):
    return tl.where((x >= -LIMIT) & (x <= LIMIT), 1.0, 0.0)


@triton.jit
def coefficients_kernel(
    logp_in,
    entropy_in,
    weight_in,
    advantage_in,
    old_in,
    reference_in,
    importance_in,
    loss_out,
    coef_logp_out,
    coef_entropy_out,
    count,
    low,
    high,
    dual,
    kl_coef,
    entropy_coef,
    HAS_OLD: tl.constexpr,
    HAS_IMPORTANCE: tl.constexpr,
    KL: tl.constexpr,
    WITH_ENTROPY: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Loss of each token and its derivatives in log-prob and entropy, for the ``token`` kind. KL: 0 none, else k1 to k3.

    Ties are torch's: where both arguments of a minimum are equal each passes half of the gradient.
    """
    lanes = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = lanes < count
    logp = tl.load(logp_in + lanes, mask=inside, other=0.0)
    advantage = tl.load(advantage_in + lanes, mask=inside, other=0.0)
    weight = tl.load(weight_in + lanes, mask=inside, other=0.0)
    moved = logp - logp
    if HAS_OLD:
        moved = logp - tl.load(old_in + lanes, mask=inside, other=0.0)
    ratio = tl.exp(_clamped(moved))
    bounded = tl.where(ratio < low, low, tl.where(ratio > high, high, ratio))
    plain, clipped = ratio * advantage, bounded * advantage
    clipped_slope = tl.where((ratio >= low) & (ratio <= high), advantage, 0.0)
    loss = -tl.where(clipped < plain, clipped, plain)
    slope = -tl.where(
        plain < clipped, advantage, tl.where(plain > clipped, clipped_slope, 0.5 * (advantage + clipped_slope))
    )
    ceiling = -dual * advantage
    bound = (advantage < 0) & (loss >= ceiling)
    slope = tl.where(bound, tl.where(loss > ceiling, 0.0, 0.5 * slope), slope)
    loss = tl.where(bound, ceiling, loss)
    coef = slope * ratio * _within(moved)
    if HAS_IMPORTANCE:
        importance = tl.load(importance_in + lanes, mask=inside, other=0.0)
        loss *= importance
        coef *= importance
    if KL > 0:
        drift = logp - tl.load(reference_in + lanes, mask=inside, other=0.0)
        d = _clamped(drift)
        if KL == 1:
            penalty, push = d, d * 0.0 + 1.0
        elif KL == 2:
            penalty, push = 0.5 * d * d, d
        else:
            # exp(-d) - 1 loses its digits near 0; six terms of the series are exact to fp32 there.
            near = tl.abs(d) < 0.1
            series = d * (1.0 - d * (0.5 - d * (1.0 / 6 - d * (1.0 / 24 - d * (1.0 / 120 - d / 720)))))
            push = tl.where(near, series, 1.0 - tl.exp(-d))
            curve = d * d * (0.5 - d * (1.0 / 6 - d * (1.0 / 24 - d * (1.0 / 120 - d / 720))))
            penalty = tl.where(near, curve, d - push)
        loss += kl_coef * penalty
        coef += kl_coef * push * _within(drift)
    if WITH_ENTROPY:
        loss -= entropy_coef * tl.load(entropy_in + lanes, mask=inside, other=0.0)
        tl.store(coef_entropy_out + lanes, -entropy_coef * weight, mask=inside)
    tl.store(loss_out + lanes, weight * loss, mask=inside)
    tl.store(coef_logp_out + lanes, weight * coef, mask=inside)
