"""One optimizer update: micro-batches through the body, the chunked head, one backward each, one step.

The pieces are ``core.rl``'s; this module lays the sequences out and puts the calls in order. It knows the live model, but
neither recipes nor rewards: a sequence arrives with its advantage.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from core.rl.chunked import backward_hidden, chunked_backward, chunked_logprobs
from core.rl.embedding import scattered_embedding
from core.rl.objective import Objective, TokenTerms, token_weights
from core.rl.optim import MasterOptimizer, StepResult
from core.rl.statistics import TokenStats
from core.rl.transfer import to_device

Body = Callable[..., Any]


@dataclass(frozen=True)
class TrainSequence:
    """One completion to learn from. ``counts`` is False for samples taken out of the loss altogether.

    ``token_advantages`` [T] replaces ``advantage`` where it differs within the completion; ``importance`` [T] are importance
    weights of the surrogate, 1 where None.
    """

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    advantage: float
    counts: bool = True
    token_advantages: Tensor | None = None
    importance: Tensor | None = None

    @property
    def tokens(self) -> int:
        """Length of prompt and completion."""
        return len(self.prompt_ids) + len(self.completion_ids)


@dataclass(frozen=True)
class MicroBatch:
    """Right-padded sequences; P = B x S positions, row by row.

    No attention mask: under causal attention no token sees the padding to its right, and without a mask attention takes
    its fastest kernel. ``targets_P`` is each position's next token (0 where it predicts nothing that counts);
    ``places_T`` (on the host) are the positions that predict a completion token, sequence by sequence.
    """

    indices: tuple[int, ...]
    input_ids_BS: Tensor
    targets_P: Tensor
    places_T: Tensor
    lengths: tuple[int, ...]


@dataclass(frozen=True)
class Head:
    """How hidden states become log-probs: the head's weight, the sampling temperature, tokens per chunk.

    ``tied`` says that the weight is the input embedding too, whose gradient then goes straight into the same buffer.
    """

    weight_VH: Tensor
    temperature: float
    chunk: int
    tied: bool = False


@dataclass(frozen=True)
class UpdateResult:
    """What one update did. ``loss`` is NaN-preserving; ``step`` is None when no token survived and nothing was tried.

    ``step.nonfinite`` names ``loss`` or moments of the optimizer, as ``MOMENT.NAME``, when these are what is not finite.
    """

    loss: float
    stats: TokenStats
    step: StepResult | None
    logp: tuple[Tensor, ...]


def build_micro_batches(
    sequences: Sequence[TrainSequence], plan: Sequence[Sequence[int]], device: torch.device
) -> list[MicroBatch]:
    """Lay the sequences out as the plan (lists of indices) says. Masks go by position, so a pad id may equal eos."""
    return [_micro_batch(sequences, tuple(indices), device) for indices in plan]


def _micro_batch(sequences: Sequence[TrainSequence], indices: tuple[int, ...], device: torch.device) -> MicroBatch:
    rows = [sequences[index] for index in indices]
    width = max(row.tokens for row in rows)
    input_ids_BS = torch.zeros(len(rows), width, dtype=torch.long)
    targets_BS = torch.zeros(len(rows), width, dtype=torch.long)
    counts_BS = torch.zeros(len(rows), width, dtype=torch.bool)
    for place, row in enumerate(rows):
        predicting = slice(len(row.prompt_ids) - 1, row.tokens - 1)
        input_ids_BS[place, : row.tokens] = torch.tensor(row.prompt_ids + row.completion_ids)
        targets_BS[place, predicting] = torch.tensor(row.completion_ids, dtype=torch.long)
        counts_BS[place, predicting] = True
    return MicroBatch(
        indices,
        to_device(input_ids_BS, device),
        to_device(targets_BS.flatten(), device),
        counts_BS.flatten().nonzero().squeeze(-1),
        tuple(len(row.completion_ids) for row in rows),
    )


def _hidden(body: Body, batch: MicroBatch, embedded: Tensor | None = None) -> Tensor:
    inputs = {"input_ids": batch.input_ids_BS} if embedded is None else {"inputs_embeds": embedded}
    hidden_BSH: Tensor = body(**inputs, use_cache=False).last_hidden_state
    return hidden_BSH


@torch.no_grad()
def score(body: Body, head: Head, batches: Sequence[MicroBatch]) -> list[Tensor]:
    """Return for each micro-batch the log-probs of its completion tokens [T], without gradient.

    The arithmetic is that of :func:`update` on the same micro-batches, so the first ratio after a rollout is exactly 1.
    """
    return [
        chunked_logprobs(
            _hidden(body, batch).flatten(0, 1),
            head.weight_VH,
            batch.targets_P,
            temperature=head.temperature,
            chunk=head.chunk,
            mask_T=torch.zeros(batch.targets_P.shape, dtype=torch.bool).index_fill(0, batch.places_T, True),
        )[0][to_device(batch.places_T, batch.targets_P.device)]
        for batch in batches
    ]


def update(
    body: Body,
    head: Head,
    optimizer: MasterOptimizer,
    sequences: Sequence[TrainSequence],
    batches: Sequence[MicroBatch],
    *,
    objective: Objective,
    lr: float,
    max_grad_norm: float | None,
    old_logp: Sequence[Tensor] | None,
    ref_logp: Sequence[Tensor] | None,
    before_step: Callable[[], None] = lambda: None,
) -> UpdateResult:
    """Take one update over ``sequences``, of which ``batches`` are the micro-batches.

    ``old_logp`` holds log-probs at the rollout's weights per micro-batch, None when these are the current weights;
    ``ref_logp`` those of the reference. A gradient that is not finite changes nothing (``step.applied`` is False).
    ``before_step`` is called once the gradients are complete.
    """
    weights_BT = _folded_weights(sequences, objective)
    optimizer.zero_grad()
    head_grad_VH = _gradient_buffer(head.weight_VH)
    loss, stats, logp = torch.zeros((), dtype=torch.float64), TokenStats(), []
    for place, batch in enumerate(batches):
        terms = TokenTerms(
            weight_T=_at_places(torch.cat([weights_BT[index, :length] for index, length in _rows(batch)]), batch),
            advantage_T=_at_places(torch.cat([_advantages(sequences[index]) for index in batch.indices]), batch),
            logp_old_T=None if old_logp is None else _at_places(old_logp[place], batch),
            ref_logp_T=None if ref_logp is None else _at_places(ref_logp[place], batch),
            is_weight_T=_importance(sequences, batch),
            sequence_T=_at_places(_per_token(list(range(len(batch.indices))), batch), batch),
        )
        embedded = None
        if head.tied and head_grad_VH is not None:
            embedded = scattered_embedding(head.weight_VH, batch.input_ids_BS, head_grad_VH)
        hidden_BSH = _hidden(body, batch, embedded)
        result = chunked_backward(
            hidden_BSH.detach().flatten(0, 1),
            head.weight_VH,
            batch.targets_P,
            terms,
            objective,
            temperature=head.temperature,
            chunk=head.chunk,
            weight_grad_VH=head_grad_VH,
        )
        # The card is kept busy first; reading the numbers below waits for it.
        backward_hidden(hidden_BSH, result.grad_hidden_TH)
        loss += result.loss_sum.cpu()
        stats += result.stats
        logp.append(result.logp_T[to_device(batch.places_T, result.logp_T.device)])
    before_step()
    step = _step(optimizer, float(loss), lr, max_grad_norm) if stats.tokens else None
    return UpdateResult(float(loss), stats, step, tuple(logp))


def _step(optimizer: MasterOptimizer, loss: float, lr: float, max_grad_norm: float | None) -> StepResult:
    """Step, unless the loss, a gradient or a moment beside the weights is not finite: then nothing changes.

    A loss can be NaN while every gradient is finite, because the derivative of a clamp at NaN is 0. Moments in host memory
    are not read here; a checkpoint of weights that they ruined is refused when it is written.
    """
    broken = nonfinite_moments(optimizer)
    if not math.isfinite(loss) and math.isfinite(optimizer.grad_norm()):
        broken = ("loss", *broken)
    if broken:
        return StepResult(applied=False, grad_norm=optimizer.grad_norm(), clip_scale=1.0, lr=lr, nonfinite=broken)
    return optimizer.step(lr, max_grad_norm=max_grad_norm)


@torch.no_grad()
def nonfinite_moments(optimizer: MasterOptimizer) -> tuple[str, ...]:
    """Names of the moments, of those on their weight's own device, that hold a number that is not finite."""
    sums = {
        f"{moment}.{name}": value.sum(dtype=torch.float64)
        for moment, values in optimizer.moments.items()
        for name, value in values.items()
        if value.is_floating_point() and value.device == optimizer.parameters[name].device
    }
    if not sums:
        return ()
    finite = torch.isfinite(torch.stack(list(sums.values()))).tolist()
    return tuple(name for name, good in zip(sums, finite, strict=True) if not good)


def _advantages(row: TrainSequence) -> Tensor:
    if row.token_advantages is not None:
        return row.token_advantages.double()
    return torch.full((len(row.completion_ids),), row.advantage, dtype=torch.float64)


def _importance(sequences: Sequence[TrainSequence], batch: MicroBatch) -> Tensor | None:
    rows = [sequences[index] for index in batch.indices]
    if all(row.importance is None for row in rows):
        return None
    weights = [
        torch.ones(len(row.completion_ids), dtype=torch.float64) if row.importance is None else row.importance.double()
        for row in rows
    ]
    return _at_places(torch.cat(weights), batch)


def _folded_weights(sequences: Sequence[TrainSequence], objective: Objective) -> Tensor:
    lengths_B = torch.tensor([len(row.completion_ids) if row.counts else 0 for row in sequences])
    width = max((len(row.completion_ids) for row in sequences), default=0)
    mask_BT = torch.arange(width) < lengths_B[:, None]
    return token_weights(mask_BT, objective.aggregation, objective.norm_length)


def _rows(batch: MicroBatch) -> list[tuple[int, int]]:
    return list(zip(batch.indices, batch.lengths, strict=True))


def _per_token(values: Sequence[float], batch: MicroBatch) -> Tensor:
    return torch.tensor(values).repeat_interleave(torch.tensor(batch.lengths))


def _at_places(values_T: Tensor, batch: MicroBatch) -> Tensor:
    """One value per completion token to one per position, 0 elsewhere, on the device where the values are."""
    places_T = to_device(batch.places_T, values_T.device)
    return values_T.new_zeros(batch.targets_P.numel()).index_copy(0, places_T, values_T)


def _gradient_buffer(weight_VH: Tensor) -> Tensor | None:
    """The head's gradient; None for a head that is not trained, as with adapters."""
    if not weight_VH.requires_grad:
        return None
    if weight_VH.grad is None:
        weight_VH.grad = torch.zeros_like(weight_VH)
    return weight_VH.grad
