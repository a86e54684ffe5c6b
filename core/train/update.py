"""One optimizer update: micro-batches through the body, the chunked head, one backward each, one step.

The pieces are ``core.rl``'s; this module lays the sequences out and puts the calls in order. It knows the live model, but
neither recipes nor rewards: a sequence arrives with its advantage.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from core.rl.chunked import backward_hidden, chunked_backward, chunked_logprobs
from core.rl.objective import Objective, TokenTerms, token_weights
from core.rl.optim import MasterOptimizer, StepResult
from core.rl.statistics import TokenStats

Body = Callable[..., Any]


@dataclass(frozen=True)
class TrainSequence:
    """One completion to learn from. ``counts`` is False for samples taken out of the loss altogether."""

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    advantage: float
    counts: bool = True

    @property
    def tokens(self) -> int:
        """Length of prompt and completion."""
        return len(self.prompt_ids) + len(self.completion_ids)


@dataclass(frozen=True)
class MicroBatch:
    """Right-padded sequences. ``select_BT`` marks the positions whose hidden state predicts a completion token.

    ``targets_T`` are those tokens, sequence by sequence, in the order in which ``select_BT`` picks them.
    """

    indices: tuple[int, ...]
    input_ids_BT: Tensor
    attention_mask_BT: Tensor
    select_BT: Tensor
    targets_T: Tensor
    lengths: tuple[int, ...]


@dataclass(frozen=True)
class Head:
    """How hidden states become log-probs: the head's weight, the sampling temperature, tokens per chunk."""

    weight_VH: Tensor
    temperature: float
    chunk: int


@dataclass(frozen=True)
class UpdateResult:
    """What one update did. ``loss`` is NaN-preserving; ``step`` is None when no token survived and nothing was tried."""

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
    input_ids_BT = torch.zeros(len(rows), width, dtype=torch.long)
    attention_mask_BT = torch.zeros(len(rows), width, dtype=torch.long)
    select_BT = torch.zeros(len(rows), width, dtype=torch.bool)
    for place, row in enumerate(rows):
        input_ids_BT[place, : row.tokens] = torch.tensor(row.prompt_ids + row.completion_ids)
        attention_mask_BT[place, : row.tokens] = 1
        select_BT[place, len(row.prompt_ids) - 1 : row.tokens - 1] = True
    targets_T = torch.tensor([token for row in rows for token in row.completion_ids], dtype=torch.long)
    return MicroBatch(
        indices,
        input_ids_BT.to(device),
        attention_mask_BT.to(device),
        select_BT.to(device),
        targets_T.to(device),
        tuple(len(row.completion_ids) for row in rows),
    )


def _hidden_TH(body: Body, batch: MicroBatch) -> Tensor:
    output = body(input_ids=batch.input_ids_BT, attention_mask=batch.attention_mask_BT, use_cache=False)
    hidden_TH: Tensor = output.last_hidden_state[batch.select_BT]
    return hidden_TH


@torch.no_grad()
def score(body: Body, head: Head, batches: Sequence[MicroBatch]) -> list[Tensor]:
    """Return for each micro-batch the log-probs of its completion tokens [T], without gradient.

    The arithmetic is that of :func:`update` on the same micro-batches, so the first ratio after a rollout is exactly 1.
    """
    return [
        chunked_logprobs(
            _hidden_TH(body, batch), head.weight_VH, batch.targets_T, temperature=head.temperature, chunk=head.chunk
        )[0]
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
        hidden_TH = _hidden_TH(body, batch)
        terms = TokenTerms(
            weight_T=torch.cat([weights_BT[index, :length] for index, length in _rows(batch)]).to(hidden_TH.device),
            advantage_T=_per_token([sequences[index].advantage for index in batch.indices], batch).to(hidden_TH.device),
            logp_old_T=None if old_logp is None else old_logp[place],
            ref_logp_T=None if ref_logp is None else ref_logp[place],
            sequence_T=_per_token(list(range(len(batch.indices))), batch).to(hidden_TH.device),
        )
        result = chunked_backward(
            hidden_TH.detach(),
            head.weight_VH,
            batch.targets_T,
            terms,
            objective,
            temperature=head.temperature,
            chunk=head.chunk,
            weight_grad_VH=head_grad_VH,
        )
        backward_hidden(hidden_TH, result.grad_hidden_TH)
        loss += result.loss_sum.cpu()
        stats += result.stats
        logp.append(result.logp_T)
    before_step()
    step = optimizer.step(lr, max_grad_norm=max_grad_norm) if stats.tokens else None
    return UpdateResult(float(loss), stats, step, tuple(logp))


def _folded_weights(sequences: Sequence[TrainSequence], objective: Objective) -> Tensor:
    lengths_B = torch.tensor([len(row.completion_ids) if row.counts else 0 for row in sequences])
    width = max(len(row.completion_ids) for row in sequences)
    mask_BT = torch.arange(width) < lengths_B[:, None]
    return token_weights(mask_BT, objective.aggregation, objective.norm_length)


def _rows(batch: MicroBatch) -> list[tuple[int, int]]:
    return list(zip(batch.indices, batch.lengths, strict=True))


def _per_token(values: Sequence[float], batch: MicroBatch) -> Tensor:
    return torch.tensor(values).repeat_interleave(torch.tensor(batch.lengths))


def _gradient_buffer(weight_VH: Tensor) -> Tensor:
    if weight_VH.grad is None:
        weight_VH.grad = torch.zeros_like(weight_VH)
    return weight_VH.grad
