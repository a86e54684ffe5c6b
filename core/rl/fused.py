"""The head's elementwise work in three Triton launches per chunk, for CUDA cards; plain PyTorch does the same elsewhere.

Matrix products stay with the vendor's library. Between them the eager path of :mod:`core.rl.head` reads and writes the
chunk's logits nine times; here they are read twice and overwritten once:

1. :func:`statistics`: log-prob, entropy and log-sum-exp of each row. The no-gradient pass launches the same kernel on the
   same product, which is why the first on-policy ratio is exactly 1.
2. :func:`coefficients`: the ``token`` objectives' derivatives in closed form (autograd would be dozens of launches of vectors).
3. :func:`gradient_`: the gradient in the head's dtype over the logits' own memory, so that a chunk costs one fp32 [C, V].

The oracle of all three is the eager path; it is not removed, and float64 always takes it.
"""

import math
from importlib.util import find_spec

import torch
from torch import Tensor

from core.rl.objective import Objective, TokenTerms

_BLOCK = 4096  # words per step of a row
_STATISTICS_WARPS = 16  # measured: 0.19 ms for 1,024 rows against 0.23 with 8
_GRADIENT_WARPS = 8
_VECTOR_BLOCK = 256
_KL = {"k1": 1, "k2": 2, "k3": 3}


def usable(hidden: Tensor) -> bool:
    """Whether the kernels run on this tensor: a CUDA tensor of at most 32 bits, and Triton is installed."""
    return hidden.is_cuda and hidden.dtype != torch.float64 and find_spec("triton") is not None


def statistics(logits_CV: Tensor, targets_C: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    """Log-prob of each target, entropy and log-sum-exp of each row of ``logits_CV / temperature``, all fp32 [C]."""
    from core.rl.kernels import statistics_kernel

    rows, vocab = logits_CV.shape
    logp_C, entropy_C, norm_C = (torch.empty(rows, dtype=torch.float32, device=logits_CV.device) for _ in range(3))
    statistics_kernel[(rows,)](
        logits_CV,
        logits_CV.stride(0),
        targets_C,
        logp_C,
        entropy_C,
        norm_C,
        vocab,
        1.0 / temperature,
        BLOCK=_BLOCK,
        num_warps=_STATISTICS_WARPS,
    )
    return logp_C, entropy_C, norm_C


def coefficients(
    logp_C: Tensor, entropy_C: Tensor, terms: TokenTerms, objective: Objective
) -> tuple[Tensor, Tensor, Tensor]:
    """Loss of each token and its derivatives in log-prob and in entropy, as autograd of ``policy_loss`` gives them.

    Args:
        logp_C, entropy_C: fp32, contiguous.
        terms: fp32, contiguous, every weight non-zero.
        objective: of the ``token`` kind.

    Raises:
        ValueError: for another kind, whose ratios need whole sequences.
    """
    from core.rl.kernels import coefficients_kernel

    if objective.kind != "token":
        raise ValueError(f"coefficients are per token; kind is {objective.kind!r}")
    loss_C, coef_logp_C = torch.empty_like(logp_C), torch.empty_like(logp_C)
    coef_entropy_C = torch.empty_like(logp_C) if objective.entropy_coef else logp_C
    absent = logp_C  # a pointer that is never read
    coefficients_kernel[(-(-logp_C.numel() // _VECTOR_BLOCK),)](
        logp_C,
        entropy_C,
        terms.weight_T,
        terms.advantage_T,
        absent if terms.logp_old_T is None else terms.logp_old_T,
        absent if terms.ref_logp_T is None else terms.ref_logp_T,
        absent if terms.is_weight_T is None else terms.is_weight_T,
        loss_C,
        coef_logp_C,
        coef_entropy_C,
        logp_C.numel(),
        1.0 - objective.clip_low,
        1.0 + objective.clip_high,
        math.inf if objective.dual_clip is None else objective.dual_clip,
        objective.kl_coef,
        objective.entropy_coef,
        HAS_OLD=terms.logp_old_T is not None,
        HAS_IMPORTANCE=terms.is_weight_T is not None,
        KL=_KL[objective.kl_estimator] if objective.kl_coef else 0,
        WITH_ENTROPY=bool(objective.entropy_coef),
        BLOCK=_VECTOR_BLOCK,
    )
    return loss_C, coef_logp_C, coef_entropy_C


def gradient_(
    logits_CV: Tensor,
    targets_C: Tensor,
    *,
    norm_C: Tensor,
    entropy_C: Tensor,
    coef_logp_C: Tensor,
    coef_entropy_C: Tensor | None,
    temperature: float,
    dtype: torch.dtype,
) -> Tensor:
    """Gradient of the loss in the unscaled logits, in ``dtype``, over the memory of ``logits_CV``.

    Formula as in :func:`core.rl.head.logit_gradient_`, divided by the temperature.

    Returns:
        A view [C, V] of the logits' memory whose rows start where theirs did; ``logits_CV`` is lost.
    """
    from core.rl.kernels import gradient_kernel

    rows, vocab = logits_CV.shape
    grad_CV = logits_CV if dtype == logits_CV.dtype else logits_CV.view(dtype)[:, :vocab]
    gradient_kernel[(rows,)](
        logits_CV,
        logits_CV.stride(0),
        grad_CV,
        grad_CV.stride(0),
        targets_C,
        norm_C,
        entropy_C,
        coef_logp_C,
        coef_logp_C if coef_entropy_C is None else coef_entropy_C,
        vocab,
        1.0 / temperature,
        WITH_ENTROPY=coef_entropy_C is not None,
        BLOCK=_BLOCK,
        num_warps=_GRADIENT_WARPS,
    )
    return grad_CV
