"""The head, the loss and their backward, a chunk of tokens at a time, so that memory does not grow with T x V.

A language model's logits are by far the largest tensor of its training: 4,096 tokens times 151,936 words are 2.5 GB in
float32, and autograd keeps several copies. Here the head is applied to one chunk of tokens, its log-probs and entropies
are reduced to one number per token, the objective is differentiated with respect to those numbers, and the chunk's
gradient of the logits is written over the chunk's probabilities and multiplied out at once: into the gradient of the hidden
states and, in place, into the head's gradient buffer. The method is that of Liger Kernel's fused linear losses
(Hsu et al. 2024, section 3.2), for every objective of :mod:`core.rl.objective`.

Only tokens of non-zero weight pass through the head at all. Whatever the others hold, they contribute exactly nothing.
Where all tokens count, chunks are views of the hidden states. On CUDA the elementwise part is :mod:`core.rl.fused`; the
eager one here is its oracle and what every other device runs.

Nothing here waits for the card, provided that weights (or the mask) come from the host: the counts of ``stats`` are read when
they are asked for, so that the caller can start the body's backward first.

The body of the model is the caller's: run it with autograd, pass the detached hidden states here, and hand the returned
gradient to :func:`backward_hidden`. Heads with a bias, a logit soft-cap or a logit scale are refused, not ignored.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from core.rl import fused, head
from core.rl.objective import Objective, TokenTerms, policy_loss
from core.rl.statistics import TokenStats, token_stats
from core.rl.transfer import to_device


@dataclass(frozen=True, slots=True)
class ChunkedResult:
    """What one micro-batch gives.

    Attributes:
        loss_sum: float64 scalar tensor; its share of the update's loss. The sum over micro-batches is the loss.
        grad_hidden_TH: gradient of the loss in the hidden states' dtype; exactly 0 at tokens of weight 0.
        logp_T, entropy_T: of each token at the given temperature; 0 at tokens of weight 0.
        terms, objective: what the loss was taken with, in the compute dtype.
    """

    loss_sum: Tensor
    grad_hidden_TH: Tensor
    logp_T: Tensor
    entropy_T: Tensor
    terms: TokenTerms
    objective: Objective

    @property
    def stats(self) -> TokenStats:
        """Sums with counts, which add up over micro-batches. Computed on access: waits for the card."""
        return token_stats(self.logp_T, self.entropy_T, self.terms, self.objective)


@torch.no_grad()
def chunked_logprobs(
    hidden_TH: Tensor,
    weight_VH: Tensor,
    targets_T: Tensor,
    *,
    temperature: float = 1.0,
    chunk: int = 1024,
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
    rows = _Rows.where(mask_T, targets_T)
    logp_K, entropy_K = _logprobs(hidden_TH, weight_VH, rows.of(targets_T), rows, temperature=temperature, chunk=chunk)
    return rows.spread(logp_K), rows.spread(entropy_K)


@torch.no_grad()
def chunked_backward(
    hidden_TH: Tensor,
    weight_VH: Tensor,
    targets_T: Tensor,
    terms: TokenTerms,
    objective: Objective,
    *,
    temperature: float = 1.0,
    chunk: int = 1024,
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
        chunk: tokens per chunk; peak memory is one fp32 [chunk, V] tensor with the kernels, else two or three.
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
    rows = _Rows.where(terms.weight_T != 0, targets_T)
    terms = terms.to(head.compute_dtype(hidden_TH.dtype), hidden_TH.device)
    targets_K, terms_K = rows.of(targets_T), terms if rows.index_K is None else terms.take(rows.index_K)
    whole = None
    if objective.kind == "sequence":
        logp_K, entropy_K = _logprobs(hidden_TH, weight_VH, targets_K, rows, temperature=temperature, chunk=chunk)
        whole = _Coefficients.of(logp_K, entropy_K, terms_K, objective)

    differentiate = _chunk_fused if fused.usable(hidden_TH) else _chunk_eager
    grad_hidden_TH = torch.empty_like(hidden_TH) if rows.index_K is None else torch.zeros_like(hidden_TH)
    parts = []
    for part in rows.chunks(chunk):
        *per_token, grad_hidden_CH = differentiate(
            rows.take(hidden_TH, part),
            weight_VH,
            targets_K[part],
            terms=terms_K.slice(part),
            objective=objective,
            given=None if whole is None else whole.slice(part),
            temperature=temperature,
            weight_grad_VH=weight_grad_VH,
        )
        rows.put_(grad_hidden_TH, part, grad_hidden_CH)
        parts.append(per_token)
    loss_K, logp_K, entropy_K = (
        _joined(values, hidden_TH) for values in (zip(*parts, strict=True) if parts else [()] * 3)
    )
    return ChunkedResult(
        loss_sum=loss_K.double().sum(),
        grad_hidden_TH=grad_hidden_TH,
        logp_T=rows.spread(logp_K),
        entropy_T=rows.spread(entropy_K),
        terms=terms,
        objective=objective,
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

    def slice(self, part: slice) -> "_Coefficients":
        return _Coefficients(self.loss_T[part], self.logp_T[part], self.entropy_T[part])


@dataclass(frozen=True, slots=True)
class _Rows:
    """The tokens that pass through the head: all of ``tokens`` (``index_K`` is None, chunks are views) or some."""

    tokens: int
    index_K: Tensor | None

    @classmethod
    def where(cls, mask_T: Tensor | None, targets_T: Tensor) -> "_Rows":
        if mask_T is None:
            return cls(targets_T.numel(), None)
        if mask_T.shape != targets_T.shape:
            expected, found = tuple(targets_T.shape), tuple(mask_T.shape)
            raise ValueError(f"mask_T must have the shape of targets_T, {expected}, got {found}")
        index_K = mask_T.nonzero().squeeze(-1)
        return cls(mask_T.numel(), None if index_K.numel() == mask_T.numel() else to_device(index_K, targets_T.device))

    def chunks(self, size: int) -> Iterator[slice]:
        count = self.tokens if self.index_K is None else self.index_K.numel()
        return (slice(start, min(start + size, count)) for start in range(0, count, size))

    def of(self, values_T: Tensor) -> Tensor:
        return values_T if self.index_K is None else values_T.index_select(0, self.index_K)

    def take(self, values_TH: Tensor, part: slice) -> Tensor:
        return values_TH[part] if self.index_K is None else values_TH.index_select(0, self.index_K[part])

    def put_(self, values_TH: Tensor, part: slice, values_CH: Tensor) -> None:
        if self.index_K is None:
            values_TH[part] = values_CH
        else:
            values_TH.index_copy_(0, self.index_K[part], values_CH)

    def spread(self, values_K: Tensor) -> Tensor:
        """One value per token again, 0 at those left out."""
        if self.index_K is None:
            return values_K
        return values_K.new_zeros(self.tokens).index_copy_(0, self.index_K, values_K)


def _chunk_eager(
    hidden_CH: Tensor,
    weight_VH: Tensor,
    targets_C: Tensor,
    *,
    terms: TokenTerms,
    objective: Objective,
    given: _Coefficients | None,
    temperature: float,
    weight_grad_VH: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Loss, log-prob and entropy [C] and gradient of the hidden states [C, H] of one chunk, in plain PyTorch."""
    log_p_CV = head.log_softmax(hidden_CH, weight_VH, temperature)
    p_CV = log_p_CV.exp()
    logp_C, entropy_C = head.reduce(log_p_CV, p_CV, targets_C)
    part = _Coefficients.of(logp_C, entropy_C, terms, objective) if given is None else given
    grad_CV = head.logit_gradient_(
        log_p_CV,
        p_CV,
        targets_C,
        coef_logp_C=part.logp_T,
        coef_entropy_C=part.entropy_T if objective.entropy_coef else None,
        entropy_C=entropy_C,
    )
    if temperature != 1.0:
        grad_CV.div_(temperature)
    grad_CV = grad_CV.to(weight_VH.dtype)
    return part.loss_T, logp_C, entropy_C, head.backward(grad_CV, hidden_CH, weight_VH, weight_grad_VH)


def _chunk_fused(
    hidden_CH: Tensor,
    weight_VH: Tensor,
    targets_C: Tensor,
    *,
    terms: TokenTerms,
    objective: Objective,
    given: _Coefficients | None,
    temperature: float,
    weight_grad_VH: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The same by the kernels; one fp32 [C, V] exists, whose memory the gradient takes over."""
    logits_CV = head.logits(hidden_CH, weight_VH)
    logp_C, entropy_C, norm_C = fused.statistics(logits_CV, targets_C, temperature)
    if given is None and objective.kind != "token":
        given = _Coefficients.of(logp_C, entropy_C, terms, objective)
    loss_C, coef_logp_C, coef_entropy_C = (
        fused.coefficients(logp_C, entropy_C, terms, objective)
        if given is None
        else (given.loss_T, given.logp_T, given.entropy_T)
    )
    grad_CV = fused.gradient_(
        logits_CV,
        targets_C,
        norm_C=norm_C,
        entropy_C=entropy_C,
        coef_logp_C=coef_logp_C,
        coef_entropy_C=coef_entropy_C if objective.entropy_coef else None,
        temperature=temperature,
        dtype=weight_VH.dtype,
    )
    return loss_C, logp_C, entropy_C, head.backward(grad_CV, hidden_CH, weight_VH, weight_grad_VH)


def _logprobs(
    hidden_TH: Tensor, weight_VH: Tensor, targets_K: Tensor, rows: _Rows, *, temperature: float, chunk: int
) -> tuple[Tensor, Tensor]:
    parts = [
        _chunk_logprobs(rows.take(hidden_TH, part), weight_VH, targets_K[part], temperature)
        for part in rows.chunks(chunk)
    ]
    logp_K, entropy_K = (_joined(values, hidden_TH) for values in (zip(*parts, strict=True) if parts else [()] * 2))
    return logp_K, entropy_K


def _chunk_logprobs(
    hidden_CH: Tensor, weight_VH: Tensor, targets_C: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    if fused.usable(hidden_CH):
        return fused.statistics(head.logits(hidden_CH, weight_VH), targets_C, temperature)[:2]
    log_p_CV = head.log_softmax(hidden_CH, weight_VH, temperature)
    return head.reduce(log_p_CV, log_p_CV.exp(), targets_C)


def _joined(parts: tuple[Tensor, ...], hidden_TH: Tensor) -> Tensor:
    return torch.cat(parts) if parts else hidden_TH.new_zeros(0, dtype=head.compute_dtype(hidden_TH.dtype))
