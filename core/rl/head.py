"""The language model's head on one chunk of tokens: logits, softmax, and the gradient written back.

The softmax is taken in float32, or float64 for float64 inputs. ``logits`` and ``backward`` are the matrix products, which
every path uses; ``log_softmax``, ``reduce`` and ``logit_gradient_`` are the elementwise parts in plain PyTorch, the oracle of
the kernels in :mod:`core.rl.fused`.
"""

import torch
from torch import Tensor
from torch.nn import functional

# Rows of the head's gradient that are multiplied out at a time when the buffer has another dtype than the product.
_SLAB_ROWS = 4096


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """Dtype of the softmax and of everything per token."""
    return torch.promote_types(dtype, torch.float32)


def check_head(hidden_TH: Tensor, weight_VH: Tensor, targets_T: Tensor, temperature: float, chunk: int) -> None:
    """Raise ValueError unless shapes, dtypes and settings fit together."""
    if hidden_TH.ndim != 2 or weight_VH.ndim != 2 or hidden_TH.shape[1] != weight_VH.shape[1]:
        shapes = f"{tuple(hidden_TH.shape)} and {tuple(weight_VH.shape)}"
        raise ValueError(f"hidden_TH and weight_VH must be matrices of the same width H, got {shapes}")
    if hidden_TH.dtype != weight_VH.dtype:
        raise ValueError(f"weight_VH must have the dtype of hidden_TH, {hidden_TH.dtype}, got {weight_VH.dtype}")
    if targets_T.shape != hidden_TH.shape[:1] or targets_T.dtype != torch.int64:
        found = f"{targets_T.dtype} {tuple(targets_T.shape)}"
        raise ValueError(
            f"targets_T must be int64 with one entry per row of hidden_TH, {hidden_TH.shape[0]}, got {found}"
        )
    if not 0 < temperature < float("inf"):
        raise ValueError(f"temperature must be a positive number, got {temperature}")
    if chunk < 1:
        raise ValueError(f"chunk must be at least 1, got {chunk}")


def check_weight_grad(weight_VH: Tensor, weight_grad_VH: Tensor | None) -> None:
    """Raise ValueError unless the buffer has the shape of the head and is a floating tensor."""
    if weight_grad_VH is None:
        return
    if weight_grad_VH.shape != weight_VH.shape or not weight_grad_VH.is_floating_point():
        expected, found = tuple(weight_VH.shape), f"{weight_grad_VH.dtype} {tuple(weight_grad_VH.shape)}"
        raise ValueError(f"weight_grad_VH must be a floating tensor of shape {expected}, got {found}")


def refuse_extras(*, bias_V: Tensor | None, logit_softcap: float | None, logit_scale: float | None) -> None:
    """Raise ValueError for a head that is more than one matrix."""
    given = {"bias_V": bias_V, "logit_softcap": logit_softcap, "logit_scale": logit_scale}
    for name, value in given.items():
        if value is not None:
            raise ValueError(
                f"{name} is not supported: the chunked head computes hidden @ weight.T / temperature and nothing else. "
                f"Use a model whose head has no {name.removesuffix('_V').replace('_', ' ')}."
            )


def log_softmax(hidden_CH: Tensor, weight_VH: Tensor, temperature: float) -> Tensor:
    """Log-probs of every word, [C, V] in the compute dtype, at ``temperature``."""
    logits_CV = logits(hidden_CH, weight_VH)
    if temperature != 1.0:
        logits_CV.div_(temperature)
    # One reduction and one subtraction in place; functional.log_softmax would hold a second [C, V].
    return logits_CV.sub_(logits_CV.logsumexp(-1, keepdim=True))


def logits(hidden_CH: Tensor, weight_VH: Tensor) -> Tensor:
    """Unscaled logits [C, V] in the compute dtype."""
    wanted = compute_dtype(hidden_CH.dtype)
    if wanted == hidden_CH.dtype:
        return functional.linear(hidden_CH, weight_VH)
    if hidden_CH.is_cuda:
        # Half-precision products summed in float32 and left there: the logits are never rounded to half precision.
        return torch.mm(hidden_CH, weight_VH.T, out_dtype=wanted)
    return functional.linear(hidden_CH, weight_VH).to(wanted)


def reduce(log_p_CV: Tensor, p_CV: Tensor, targets_C: Tensor) -> tuple[Tensor, Tensor]:
    """Log-prob of each target and entropy of each row."""
    logp_C = log_p_CV.gather(1, targets_C[:, None]).squeeze(1)
    return logp_C, -torch.linalg.vecdot(p_CV, log_p_CV)


def logit_gradient_(
    log_p_CV: Tensor,
    p_CV: Tensor,
    targets_C: Tensor,
    *,
    coef_logp_C: Tensor,
    coef_entropy_C: Tensor | None,
    entropy_C: Tensor,
) -> Tensor:
    """Gradient with respect to the scaled logits, written over ``p_CV``; ``log_p_CV`` is scratch afterwards.

    For a loss with derivative a in the target's log-prob and b in the entropy H, the derivative in logit j is
    ``a (1[j = target] - p_j) - b p_j (log p_j + H)``.
    """
    if coef_entropy_C is None:
        p_CV.mul_(-coef_logp_C[:, None])
    else:
        log_p_CV.add_(entropy_C[:, None]).mul_(-coef_entropy_C[:, None]).sub_(coef_logp_C[:, None])
        p_CV.mul_(log_p_CV)
    return p_CV.scatter_add_(1, targets_C[:, None], coef_logp_C[:, None])


def backward(grad_CV: Tensor, hidden_CH: Tensor, weight_VH: Tensor, weight_grad_VH: Tensor | None) -> Tensor:
    """Add ``grad.T @ hidden`` to the head's buffer and return the gradient of ``hidden_CH``.

    ``grad_CV`` is the gradient in the unscaled logits, in the weight's dtype; its rows may lie apart.
    """
    if weight_grad_VH is not None:
        _accumulate(weight_grad_VH, grad_CV, hidden_CH)
    return grad_CV @ weight_VH


def _accumulate(weight_grad_VH: Tensor, grad_CV: Tensor, hidden_CH: Tensor) -> None:
    if weight_grad_VH.dtype == hidden_CH.dtype:
        weight_grad_VH.addmm_(grad_CV.T, hidden_CH)
        return
    # The product comes in slabs, because a whole one would be the second copy of the head's gradient.
    for start in range(0, weight_grad_VH.shape[0], _SLAB_ROWS):
        rows = slice(start, start + _SLAB_ROWS)
        slab_VC = grad_CV[:, rows].T
        if hidden_CH.is_cuda:
            product_VH = torch.mm(slab_VC, hidden_CH, out_dtype=torch.float32)
        else:
            product_VH = slab_VC.to(weight_grad_VH.dtype) @ hidden_CH.to(weight_grad_VH.dtype)
        weight_grad_VH[rows].add_(product_VH)
