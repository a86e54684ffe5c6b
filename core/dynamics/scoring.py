"""What one checkpoint makes of the probes: log-probs, logits and hidden states of their tokens, by teacher forcing.

Sequences go through the body in right-padded batches under a budget of tokens, and the head is applied to chunks of tokens, so
no [T, V] tensor exists. Nothing waits for the card before all batches are on their way. Log-probs are at temperature 1.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from core.dynamics.probes import ProbeSequence
from core.dynamics.tensor_file import Array, TrajectoryError
from core.dynamics.trajectory import Point
from core.engines.lines import FolderWeights
from core.engines.models import ModelError, body_and_head, load_model
from core.rl import fused, head
from core.rl.packing import plan_micro_batches

BATCH_TOKENS = 16_384
HEAD_CHUNK = 1024


@dataclass(frozen=True)
class ProbeBatch:
    """Right-padded sequences. ``places_T`` are the flat positions that predict a measured token, ``targets_T`` these tokens.

    ``columns_T`` are the tokens' places in the order of all probes' completion tokens.
    """

    input_ids_BS: Tensor
    places_T: Tensor
    targets_T: Tensor
    columns_T: Tensor


def probe_batches(
    probes: Sequence[ProbeSequence], device: torch.device, batch_tokens: int = BATCH_TOKENS
) -> list[ProbeBatch]:
    """Lay the probes out in batches of at most ``batch_tokens`` padded tokens (a longer sequence travels alone)."""
    offsets, total = [], 0
    for one in probes:
        offsets.append(total)
        total += len(one.completion_ids)
    lengths = [len(one.prompt_ids) + len(one.completion_ids) for one in probes]
    return [
        _batch(probes, rows, [offsets[row] for row in rows], device)
        for rows in plan_micro_batches(lengths, batch_tokens)
    ]


def _batch(
    probes: Sequence[ProbeSequence], rows: Sequence[int], offsets: Sequence[int], device: torch.device
) -> ProbeBatch:
    width = max(len(probes[row].prompt_ids) + len(probes[row].completion_ids) for row in rows)
    input_ids_BS = torch.zeros(len(rows), width, dtype=torch.long)
    places, targets, columns = [], [], []
    for at, (row, offset) in enumerate(zip(rows, offsets, strict=True)):
        one = probes[row]
        ids = one.prompt_ids + one.completion_ids
        input_ids_BS[at, : len(ids)] = torch.tensor(ids)
        first = at * width + len(one.prompt_ids) - 1
        places.append(torch.arange(first, first + len(one.completion_ids)))
        targets.append(torch.tensor(one.completion_ids))
        columns.append(torch.arange(offset, offset + len(one.completion_ids)))
    joined = (torch.cat(part).to(device) for part in (places, targets, columns))
    return ProbeBatch(input_ids_BS.to(device), *joined)


@torch.no_grad()
def score_tokens(
    model: PreTrainedModel, batches: Sequence[ProbeBatch], count: int, *, chunk: int = HEAD_CHUNK
) -> tuple[Tensor, Tensor]:
    """Return the log-prob at temperature 1 and the logit of every measured token, [count] each, on the host in float32."""
    body, weight_VH, _ = body_and_head(model)
    found_2T = torch.empty(2, count, device=weight_VH.device)
    for batch in batches:
        hidden_TH = _hidden(body, batch)
        chunks = zip(*(torch.split(part, chunk) for part in (hidden_TH, batch.targets_T, batch.columns_T)), strict=True)
        for hidden_CH, targets_C, columns_C in chunks:
            found_2T[:, columns_C] = _target_scores(hidden_CH, weight_VH, targets_C).float()
    logp_T, logit_T = found_2T.cpu()
    return logp_T, logit_T


@torch.no_grad()
def run_body(model: PreTrainedModel, batches: Sequence[ProbeBatch]) -> None:
    """Do of :func:`score_tokens` all but the head: the least that its time can be."""
    body = body_and_head(model)[0]
    for batch in batches:
        _hidden(body, batch)


def _hidden(body: Callable[..., Any], batch: ProbeBatch) -> Tensor:
    # No mask: under causal attention no token sees the padding to its right.
    hidden_BSH: Tensor = body(input_ids=batch.input_ids_BS, use_cache=False).last_hidden_state
    return hidden_BSH.flatten(0, 1).index_select(0, batch.places_T)


def _target_scores(hidden_CH: Tensor, weight_VH: Tensor, targets_C: Tensor) -> Tensor:
    """Log-probs and logits of the targets, [2, C], from the chunk's logits, which are summed in float32 and read once."""
    logits_CV = head.logits(hidden_CH, weight_VH)
    logit_C = logits_CV.gather(1, targets_C[:, None]).squeeze(1)
    if fused.usable(hidden_CH):
        return torch.stack((fused.statistics(logits_CV, targets_C, 1.0)[0], logit_C))
    return torch.stack((logit_C - logits_CV.logsumexp(-1), logit_C))


@contextmanager
def checkpoint_model(point: Point, dtype: torch.dtype, device: torch.device) -> Iterator[PreTrainedModel]:
    """Load the model of one point for the length of a block; raises :class:`TrajectoryError` naming the folder."""
    if not point.folder.is_dir():
        raise TrajectoryError(
            "missing_checkpoint", f"the checkpoint of step {point.step}, {point.folder.name}, is missing"
        )
    try:
        model = load_model(point.folder, dtype, device)
    except (ModelError, OSError, ValueError) as problem:
        raise TrajectoryError(
            "damaged_checkpoint",
            f"the checkpoint of step {point.step}, {point.folder.name}, cannot be loaded: {problem}",
        ) from problem
    yield model
    del model
    if device.type == "cuda":
        torch.cuda.empty_cache()


def along(
    points: Sequence[Point],
    measure: Callable[[PreTrainedModel, Point], Array],
    *,
    dtype: torch.dtype,
    device: torch.device,
    progress: Callable[[int, int], None],
) -> list[Array]:
    """Measure the model of each point, one in memory at a time; what jumps added is taken out from there on.

    A point after a jump is measured twice: at the weights before it, which are the path's, and at its own. Raises
    :class:`TrajectoryError` where numbers are not finite or a jump's start is gone.
    """
    rows: list[Array] = []
    taken_out: Array | float = 0.0
    for at, point in enumerate(points):
        progress(at, len(points))
        own = _measured(point, measure, dtype, device)
        if point.jumped is None:
            rows.append(own - taken_out)
            continue
        start = next((one for one in points[:at] if one.step == point.jumped.from_step), None)
        if start is None:
            raise TrajectoryError(
                "missing_checkpoint",
                f"the weights of step {point.step} are those after a jump from step {point.jumped.from_step}, whose "
                "checkpoint is not there, so the jump cannot be taken out of the path; keep all checkpoints (save.keep all)",
            )
        before = _measured(point, measure, dtype, device, start)
        rows.append(before - taken_out)
        taken_out = taken_out + own - before
    progress(len(points), len(points))
    return rows


def _measured(
    point: Point,
    measure: Callable[[PreTrainedModel, Point], Array],
    dtype: torch.dtype,
    device: torch.device,
    start: Point | None = None,
) -> Array:
    """Measure a point; with the ``start`` of its cycle, at the weights before its jump."""
    with checkpoint_model(point, dtype, device) as model:
        if start is not None:
            _undo_jump(model, point, start)
        found = measure(model, point)
        del model
    if not np.isfinite(found).all():
        raise TrajectoryError(
            "not_finite", f"{point.folder.name} (step {point.step}) gives numbers that are not finite"
        )
    return found


@torch.no_grad()
def _undo_jump(model: PreTrainedModel, point: Point, start: Point) -> None:
    """Put W_e = W_s + (W - W_s) / beta in place of W, in float32 before the model's dtype."""
    jumped = point.jumped
    if jumped is None:
        return
    with FolderWeights(start.folder) as begin, FolderWeights(point.folder) as after:
        for name, parameter in model.named_parameters():
            if not jumped.spared(name):
                parameter.copy_(torch.lerp(begin[name], after[name], 1 / jumped.beta))


def check_vocabulary(model: PreTrainedModel, point: Point, probes: Sequence[ProbeSequence]) -> None:
    """Refuse probes with tokens that a checkpoint does not have; raises :class:`TrajectoryError` naming its folder."""
    words = body_and_head(model)[1].shape[0]
    largest = max((max(one.prompt_ids + one.completion_ids) for one in probes), default=0)
    if largest >= words:
        raise TrajectoryError(
            "different_tokens",
            f"the probes hold token {largest}, but the vocabulary of {point.folder.name} (step {point.step}) ends at "
            f"{words - 1}; probes must be made with the checkpoints' own tokenizer",
        )


def decoder_layers(model: PreTrainedModel) -> nn.ModuleList:
    """The model's blocks in order; raises :class:`ModelError` for a body that has none."""
    body = body_and_head(model)[0]
    layers = getattr(body, "layers", None)
    if not isinstance(layers, nn.ModuleList):
        raise ModelError(f"{type(model).__name__} keeps its blocks elsewhere than in .layers")
    return layers
