"""Output-space extrapolation: one set of logits from those of two checkpoints.

``l = lerp(l_a, l_b, alpha)`` on raw logits (section 6.1 of the paper: ``l_a + alpha (l_b - l_a)``), before temperature, top-k
and top-p. Used by the transformers reference and by the vLLM model class alike, so that both compute the same numbers. It
knows no model, no cache and no sampling.
"""

import math

import torch
from torch import Tensor

from core.engines.base import EngineError


def checked_alpha(alpha: float) -> float:
    """Return ``alpha``; raises :class:`EngineError` unless it is finite."""
    if not math.isfinite(alpha):
        raise EngineError(f"alpha is {alpha}; it must be a finite number (0 is a, 1 is b, above 1 goes beyond b)")
    return float(alpha)


def combine(a_BV: Tensor, b_BV: Tensor, alpha: Tensor) -> Tensor:
    """Return the combined logits, of the shape of ``a_BV``, in fp32.

    ``alpha`` is a tensor of no dimensions, so that it can change without anything being compiled or built again. The form is
    that of ``torch.lerp``: from ``a`` below one half, from ``b`` above, hence bit-exact at 0 and at 1 (``a + (b - a)`` gives
    back ``b`` for about two thirds of fp32 logits only). A logit of -inf in either stays -inf: what one checkpoint rules out
    is ruled out at every alpha, and no inf - inf becomes NaN. NaN and +inf are not hidden.
    """
    a_BV, b_BV = a_BV.float(), b_BV.float()
    mixed_BV = torch.lerp(a_BV, b_BV, alpha.to(a_BV))
    return mixed_BV.masked_fill_(torch.isneginf(a_BV) | torch.isneginf(b_BV), -math.inf)
