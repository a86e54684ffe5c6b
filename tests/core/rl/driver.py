"""Runs one update of the tiny model through core.rl, the way the trainer does, for the tests."""

from dataclasses import dataclass

import torch
from torch import Tensor

from core.rl.chunked import backward_hidden, chunked_backward
from core.rl.embedding import scattered_embedding
from core.rl.objective import Objective, TokenTerms, token_weights, update_totals
from core.rl.statistics import TokenStats
from tests.core.rl.oracle import Batch, TinyModel


@dataclass
class Outcome:
    loss: float
    grads: dict[str, Tensor]
    stats: TokenStats
    logp_BS: Tensor


def run_update(
    model: TinyModel,
    batch: Batch,
    objective: Objective,
    *,
    temperature: float = 0.7,
    chunk: int = 7,
    micro_batches: list[list[int]] | None = None,
    use_is: bool = False,
    on_policy: bool = False,
) -> Outcome:
    """Backward of a whole update, cut into ``micro_batches`` of row indices."""
    rows = len(batch.advantage_B)
    buffers = {name: torch.zeros_like(value) for name, value in model.parameters().items()}
    head_buffer = buffers["embedding" if model.tied else "head"]
    model.layer.grad = buffers["layer"]
    weights = token_weights(
        batch.mask_BS, objective.aggregation, objective.norm_length, totals=update_totals(batch.mask_BS)
    )
    loss, stats, logp = 0.0, TokenStats(), torch.zeros_like(weights)
    for part in micro_batches or [list(range(rows))]:
        hidden = model.body(scattered_embedding(model.embedding, batch.inputs_BS[part], buffers["embedding"]))
        count, width = batch.inputs_BS[part].shape
        spread = torch.arange(count)[:, None].expand(count, width)
        terms = TokenTerms(
            weight_T=weights[part].flatten(),
            advantage_T=batch.advantage_B[part][spread].flatten(),
            logp_old_T=None if on_policy else batch.old_BS[part].flatten(),
            ref_logp_T=batch.ref_BS[part].flatten(),
            is_weight_T=batch.is_BS[part].flatten() if use_is else None,
            sequence_T=spread.flatten(),
        )
        result = chunked_backward(
            hidden.detach().flatten(0, 1),
            model.head.detach(),
            batch.targets_BS[part].flatten(),
            terms,
            objective,
            temperature=temperature,
            chunk=chunk,
            weight_grad_VH=head_buffer,
        )
        backward_hidden(hidden, result.grad_hidden_TH)
        loss += float(result.loss_sum)
        stats += result.stats
        logp[part] = result.logp_T.reshape(count, width).to(logp.dtype)
    return Outcome(loss, buffers, stats, logp)
