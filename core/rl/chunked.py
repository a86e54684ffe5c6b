"""The head, the loss and their backward, a chunk of tokens at a time, so that memory does not grow with T x V.

A language model's logits are by far the largest tensor of its training: 4,096 tokens times 151,936 words are 2.5 GB in
float32, and autograd keeps several copies. Here the head is applied to one chunk of tokens, its log-probs and entropies
are reduced to one number per token, the objective is differentiated with respect to those numbers, and the chunk's
gradient of the logits is written over the chunk's probabilities and multiplied out at once: into the gradient of the hidden
states and, in place, into the head's gradient buffer. The method is that of Liger Kernel's fused linear losses
(Hsu et al. 2024, section 3.2), for every objective of :mod:`core.rl.objective`.

Only tokens of non-zero weight pass through the head at all. Whatever the others hold, they contribute exactly nothing.

The body of the model is the caller's: run it with autograd, pass the detached hidden states here, and hand the returned
gradient to :func:`backward_hidden`. Heads with a bias, a logit soft-cap or a logit scale are refused, not ignored.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from core.rl import head
from core.rl.objective import Objective, TokenTerms, policy_loss
from core.rl.statistics import TokenStats, token_stats


@dataclass(frozen=True, slots=True)
class ChunkedResult:
    """What one micro-batch gives.

    Attributes:
        loss_sum: float64 scalar tensor; its share of the update's loss. The sum over micro-batches is the loss.
        grad_hidden_TH: gradient of the loss in the hidden states' dtype; exactly 0 at tokens of weight 0.
        logp_T, entropy_T: of each token at the given temperature; 0 at tokens of weight 0.
        stats: sums with counts, which add up over micro-batches.
    """

    loss_sum: Tensor
    grad_hidden_TH: Tensor
    logp_T: Tensor
    entropy_T: Tensor
    stats: TokenStats


@torch.no_grad()
def chunked_logprobs(
    hidden_TH: Tensor,
    weight_VH: Tensor,
    targets_T: Tensor,
    *,
    temperature: float = 1.0,
    chunk: int = 512,
    mask_T: Tensor | None = None,
    bias_V: Tensor | None = None,
    logit_softcap: float | None = None,
    logit_scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Log-prob of each target and entropy of each token's distribution, without gradient.

    The arithmetic is that of :func:`chunked_backward`. On the same hidden states with the same chunk size and mask the
    results are the same bits, so the first on-policy ratio is exactly 1.

    Args:
        hidden_TH: last hidden states, at the positions that predict ``targets_T``.
        weight_VH: the head, in the hidden states' dtype.
        targets_T: int64 token ids.
        temperature: logits are divided by it.
        chunk: tokens per chunk.
        mask_T: tokens to compute; None computes all. Use ``weight_T != 0`` to repeat a backward's chunks.
        bias_V, logit_softcap, logit_scale: refused unless None.

    Returns:
        ``logp_T, entropy_T`` in float32 (float64 for float64 inputs), 0 outside the mask.

    Raises:
        ValueError: for shapes, dtypes or settings outside the above.
    """
    head.check_head(hidden_TH, weight_VH, targets_T, temperature, chunk)
    head.refuse_extras(bias_V=bias_V, logit_softcap=logit_softcap, logit_scale=logit_scale)
    kept = _kept(mask_T, targets_T)
    return _logprobs(hidden_TH, weight_VH, targets_T, kept, temperature=temperature, chunk=chunk)


@torch.no_grad()
def chunked_backward(
    hidden_TH: Tensor,
    weight_VH: Tensor,
    targets_T: Tensor,
    terms: TokenTerms,
    objective: Objective,
    *,
    temperature: float = 1.0,
    chunk: int = 512,
    weight_grad_VH: Tensor | None,
    bias_V: Tensor | None = None,
    logit_softcap: float | None = None,
    logit_scale: float | None = None,
) -> ChunkedResult:
    """Loss of one micro-batch, gradient of its hidden states, and the head's gradient added to ``weight_grad_VH``.

    One pass for the ``token`` kind. The ``sequence`` kind needs whole-sequence ratios before the first gradient and takes
    a pass without gradient first.

    Args:
        hidden_TH: last hidden states, detached, at the positions that predict ``targets_T``.
        weight_VH: the head, in the hidden states' dtype; the embedding itself when tied.
        targets_T: int64 token ids.
        terms: per-token terms, see :class:`core.rl.objective.TokenTerms`.
        objective: see :class:`core.rl.objective.Objective`.
        temperature: logits are divided by it, as in sampling.
        chunk: tokens per chunk; peak memory is two or three [chunk, V] tensors.
        weight_grad_VH: buffer to which the head's gradient is added in place, in its own dtype (bfloat16 is small and
            loses low bits over many chunks, float32 does not); with tied weights the buffer into which the input
            embedding's gradient is scattered too. None for a frozen head.
        bias_V, logit_softcap, logit_scale: refused unless None.

    Raises:
        ValueError: for shapes, dtypes or settings outside the above, or a term the objective needs and lacks.
    """
    head.check_head(hidden_TH, weight_VH, targets_T, temperature, chunk)
    head.refuse_extras(bias_V=bias_V, logit_softcap=logit_softcap, logit_scale=logit_scale)
    head.check_weight_grad(weight_VH, weight_grad_VH)
    terms.check(objective)
    if terms.weight_T.shape != targets_T.shape:
        expected, found = tuple(targets_T.shape), tuple(terms.weight_T.shape)
        raise ValueError(f"weight_T must have the shape of targets_T, {expected}, got {found}")
    terms = terms.to(head.compute_dtype(hidden_TH.dtype), hidden_TH.device)
    kept_K = _kept(terms.weight_T != 0, targets_T)
    coefficients = None
    if objective.kind == "sequence":
        logp_T, entropy_T = _logprobs(hidden_TH, weight_VH, targets_T, kept_K, temperature=temperature, chunk=chunk)
        coefficients = _Coefficients.of(logp_T, entropy_T, terms, objective)

    logp_T, entropy_T = _per_token(hidden_TH), _per_token(hidden_TH)
    loss_T = _per_token(hidden_TH)
    grad_hidden_TH = torch.zeros_like(hidden_TH)
    for index_C in torch.split(kept_K, chunk):
        hidden_CH, targets_C = hidden_TH.index_select(0, index_C), targets_T.index_select(0, index_C)
        log_p_CV = head.log_softmax(hidden_CH, weight_VH, temperature)
        p_CV = log_p_CV.exp()
        logp_C, entropy_C = head.reduce(log_p_CV, p_CV, targets_C)
        part = (
            _Coefficients.of(logp_C, entropy_C, terms.take(index_C), objective)
            if coefficients is None
            else coefficients.take(index_C)
        )
        grad_CV = head.logit_gradient_(
            log_p_CV,
            p_CV,
            targets_C,
            coef_logp_C=part.logp_T,
            coef_entropy_C=part.entropy_T if objective.entropy_coef else None,
            entropy_C=entropy_C,
        )
        grad_hidden_TH.index_copy_(
            0, index_C, head.backward(grad_CV, hidden_CH, weight_VH, temperature, weight_grad_VH)
        )
        logp_T.index_copy_(0, index_C, logp_C)
        entropy_T.index_copy_(0, index_C, entropy_C)
        loss_T.index_copy_(0, index_C, part.loss_T)
    return ChunkedResult(
        loss_sum=loss_T.double().sum(),
        grad_hidden_TH=grad_hidden_TH,
        logp_T=logp_T,
        entropy_T=entropy_T,
        stats=token_stats(logp_T, entropy_T, terms, objective),
    )


def backward_hidden(hidden: Tensor, grad_hidden_TH: Tensor) -> None:
    """Run the body's backward from the gradient of its flattened hidden states.

    Args:
        hidden: the body's output [..., H] with its graph, whose rows in order are the tokens of ``grad_hidden_TH``.
        grad_hidden_TH: from :class:`ChunkedResult`.

    Raises:
        ValueError: when the two do not have the same number of elements or ``hidden`` has no graph.
    """
    if hidden.numel() != grad_hidden_TH.numel() or hidden.shape[-1] != grad_hidden_TH.shape[-1]:
        shapes = f"{tuple(hidden.shape)} and {tuple(grad_hidden_TH.shape)}"
        raise ValueError(f"hidden and grad_hidden_TH must hold the same rows, got {shapes}")
    if not hidden.requires_grad:
        raise ValueError("hidden has no graph: pass the body's output itself, not the detached copy")
    torch.autograd.backward(hidden, grad_hidden_TH.reshape(hidden.shape).to(hidden.dtype))


@dataclass(frozen=True, slots=True)
class _Coefficients:
    """Loss of each token and its derivatives with respect to the log-prob and the entropy of each token."""

    loss_T: Tensor
    logp_T: Tensor
    entropy_T: Tensor

    @classmethod
    def of(cls, logp_T: Tensor, entropy_T: Tensor, terms: TokenTerms, objective: Objective) -> "_Coefficients":
        # Autograd on two vectors: exact for every option, and nothing of size V is in the graph.
        with torch.enable_grad():
            logp, entropy = logp_T.detach().requires_grad_(), entropy_T.detach().requires_grad_()
            loss = policy_loss(logp, entropy, terms, objective)
            grad_logp, grad_entropy = torch.autograd.grad(
                loss.sum(), (logp, entropy), allow_unused=True, materialize_grads=True
            )
        return cls(loss.detach(), grad_logp, grad_entropy)

    def take(self, index_C: Tensor) -> "_Coefficients":
        return _Coefficients(self.loss_T[index_C], self.logp_T[index_C], self.entropy_T[index_C])


def _logprobs(
    hidden_TH: Tensor, weight_VH: Tensor, targets_T: Tensor, kept_K: Tensor, *, temperature: float, chunk: int
) -> tuple[Tensor, Tensor]:
    logp_T, entropy_T = _per_token(hidden_TH), _per_token(hidden_TH)
    for index_C in torch.split(kept_K, chunk):
        log_p_CV = head.log_softmax(hidden_TH.index_select(0, index_C), weight_VH, temperature)
        logp_C, entropy_C = head.reduce(log_p_CV, log_p_CV.exp(), targets_T.index_select(0, index_C))
        logp_T.index_copy_(0, index_C, logp_C)
        entropy_T.index_copy_(0, index_C, entropy_C)
    return logp_T, entropy_T


def _kept(mask_T: Tensor | None, targets_T: Tensor) -> Tensor:
    """Positions to compute, in order."""
    if mask_T is None:
        return torch.arange(targets_T.numel(), device=targets_T.device)
    if mask_T.shape != targets_T.shape:
        expected, found = tuple(targets_T.shape), tuple(mask_T.shape)
        raise ValueError(f"mask_T must have the shape of targets_T, {expected}, got {found}")
    return mask_T.to(targets_T.device).nonzero().squeeze(-1)


def _per_token(hidden_TH: Tensor) -> Tensor:
    return torch.zeros(hidden_TH.shape[0], dtype=head.compute_dtype(hidden_TH.dtype), device=hidden_TH.device)
