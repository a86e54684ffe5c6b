"""Gradients of groups of samples, as inner products: how noisy they are, and where they point (paper: 5.2).

A group's gradient is taken at the weights that sampled it, so every ratio is 1. Whole gradients of many groups do not fit, so a
seeded sample of coordinates stands for them; norms and cosines of the sample are those of the whole up to its size.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from core.dynamics.sampling import sampled_positions
from core.dynamics.tensor_file import Array
from core.engines.models import body_and_head
from core.rl.chunked import backward_hidden, chunked_backward
from core.rl.objective import Objective, TokenTerms, token_weights
from core.rl.packing import plan_micro_batches
from core.streams import stream_seed

MOST_COORDINATES = 1 << 22
_BATCH_TOKENS = 2048
_FLIPS = 400
_CHANCE = 0.95


@dataclass(frozen=True)
class Sampled:
    """One sampled completion. ``counts`` is False for one taken out of the loss."""

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    advantage: float
    counts: bool = True


class Coordinates:
    """The sampled coordinates of a model's gradient, the same for every checkpoint."""

    def __init__(self, model: PreTrainedModel, seed: int) -> None:
        named = {name: parameter.numel() for name, parameter in model.named_parameters()}
        total, at = sum(named.values()), 0
        self.places: list[tuple[str, Tensor]] = []
        for name in sorted(named):
            stop = at + named[name]
            drawn = sampled_positions(
                at, stop, total=total, n=MOST_COORDINATES, seed=stream_seed(seed, "gradients", "coordinates")
            )
            if len(drawn):
                self.places.append((name, torch.from_numpy(drawn - at)))
            at = stop
        self.total = total
        self.count = sum(len(place) for _, place in self.places)

    def read(self, model: PreTrainedModel) -> Tensor:
        """Return the sampled gradient [N] on the host in float32; parameters without one have 0."""
        parameters = dict(model.named_parameters())
        parts = []
        for name, place in self.places:
            grad = parameters[name].grad
            parts.append(
                torch.zeros(len(place)) if grad is None else grad.reshape(-1)[place.to(grad.device)].float().cpu()
            )
        return torch.cat(parts)


def group_gradient(
    model: PreTrainedModel, group: Sequence[Sampled], objective: Objective, *, temperature: float, chunk: int = 512
) -> None:
    """Leave the gradient of one group's loss in the parameters' ``.grad``, as if the group were the whole update."""
    body, weight_VH, _ = body_and_head(model)
    model.zero_grad(set_to_none=True)
    weight_VH.grad = torch.zeros_like(weight_VH)
    width = max(len(one.completion_ids) for one in group)
    lengths_B = torch.tensor([len(one.completion_ids) if one.counts else 0 for one in group])
    weights_BT = token_weights(torch.arange(width) < lengths_B[:, None], objective.aggregation, objective.norm_length)
    lengths = [len(one.prompt_ids) + len(one.completion_ids) for one in group]
    for rows in plan_micro_batches(lengths, _BATCH_TOKENS):
        batch = _Laid.out([group[row] for row in rows], weights_BT[rows], weight_VH.device)
        hidden_BSH = body(input_ids=batch.input_ids_BS, use_cache=False).last_hidden_state
        result = chunked_backward(
            hidden_BSH.detach().flatten(0, 1),
            weight_VH,
            batch.targets_P,
            batch.terms,
            objective,
            temperature=temperature,
            chunk=chunk,
            weight_grad_VH=weight_VH.grad,
        )
        backward_hidden(hidden_BSH, result.grad_hidden_TH)


@dataclass(frozen=True)
class _Laid:
    """Right-padded rows with one term per position; those that predict no completion token weigh 0."""

    input_ids_BS: Tensor
    targets_P: Tensor
    terms: TokenTerms

    @classmethod
    def out(cls, rows: Sequence[Sampled], weights_BT: Tensor, device: torch.device) -> "_Laid":
        width = max(len(row.prompt_ids) + len(row.completion_ids) for row in rows)
        input_ids_BS = torch.zeros(len(rows), width, dtype=torch.long)
        targets_BS = torch.zeros(len(rows), width, dtype=torch.long)
        weight_BS, advantage_BS = (torch.zeros(len(rows), width, dtype=torch.float64) for _ in range(2))
        sequence_BS = torch.arange(len(rows))[:, None].expand(-1, width)
        for at, row in enumerate(rows):
            count = len(row.completion_ids)
            predicting = slice(len(row.prompt_ids) - 1, len(row.prompt_ids) - 1 + count)
            input_ids_BS[at, : len(row.prompt_ids) + count] = torch.tensor(row.prompt_ids + row.completion_ids)
            targets_BS[at, predicting] = torch.tensor(row.completion_ids)
            weight_BS[at, predicting] = weights_BT[at, :count]
            advantage_BS[at] = row.advantage
        terms = TokenTerms(
            weight_T=weight_BS.flatten(), advantage_T=advantage_BS.flatten(), sequence_T=sequence_BS.flatten()
        )
        return cls(input_ids_BS.to(device), targets_BS.flatten().to(device), terms)


# ---- what inner products say ------------------------------------------------------------------------------------


def signal_to_noise(gram_JJ: Array) -> dict[str, float | None]:
    """Return signal and noise of J group gradients from their inner products.

    ``signal`` is the squared norm of the expected gradient (unbiased, so it can be below 0), ``noise`` the variance of one
    group's gradient around it; ``snr`` their ratio, and ``snr_of_the_mean`` J times that: what an update of J groups has.
    """
    count = len(gram_JJ)
    if count < 2:
        return {"signal": None, "noise": None, "snr": None, "snr_of_the_mean": None}
    noise = float((np.trace(gram_JJ) - gram_JJ.sum() / count) / (count - 1))
    signal = float(gram_JJ.sum() / count**2 - noise / count)
    snr = signal / noise if noise > 0 else None
    return {"signal": signal, "noise": noise, "snr": snr, "snr_of_the_mean": None if snr is None else snr * count}


def alignment(gram_JJ: Array, along_J: Array, norm: float, seed: int) -> dict[str, float | None]:
    """Return the cosine of the mean of J gradients with a fixed direction, and the chance line.

    ``along_J`` are the inner products with the direction of length ``norm``. Chance is the cosine's size that 95 % of the same
    gradients stay below when each has a random sign: no common direction, but their own sizes and angles.
    """
    size = float(np.sqrt(max(gram_JJ.sum(), 0.0)))
    if not size or not norm:
        return {"cosine": None, "chance": None}
    rng = np.random.default_rng(stream_seed(seed, "gradients", "signs"))
    signs_FJ = 1.0 - 2.0 * rng.integers(2, size=(_FLIPS, len(along_J)))
    sizes_F = np.sqrt(np.maximum(np.einsum("fi,ij,fj->f", signs_FJ, gram_JJ, signs_FJ, optimize=True), 1e-300))
    cosines_F = np.abs(signs_FJ @ along_J) / sizes_F / norm
    return {
        "cosine": float(along_J.sum() / size / norm),
        "chance": float(np.quantile(cosines_F, _CHANCE)),
    }


def leave_one_out(increments_II: Array, seed: int) -> list[dict[str, float | None]]:
    """Return each increment's cosine with the sum of all others, and the chance line: the same under random signs."""
    count = len(increments_II)
    rng = np.random.default_rng(stream_seed(seed, "gradients", "leave-one-out"))
    signs_FI: Array = 1.0 - 2.0 * rng.integers(2, size=(_FLIPS, count)).astype(np.float64)
    found: list[dict[str, float | None]] = []
    for at in range(count):
        cosine = _cosine_with_others(increments_II, at, np.ones((1, count)))[0]
        flipped = np.abs(_cosine_with_others(increments_II, at, signs_FI))
        known = np.isfinite(cosine)
        found.append(
            {
                "cosine": float(cosine) if known else None,
                "chance": float(np.quantile(flipped, _CHANCE)) if known else None,
            }
        )
    return found


def _cosine_with_others(gram_II: Array, at: int, signs_FI: Array) -> Array:
    others_FI = signs_FI.copy()
    others_FI[:, at] = 0.0
    along_F = others_FI @ gram_II[:, at]
    sizes_F = np.sqrt(np.maximum(np.einsum("fi,ij,fj->f", others_FI, gram_II, others_FI, optimize=True), 0.0))
    with np.errstate(divide="ignore", invalid="ignore"):
        found: Array = along_F / sizes_F / np.sqrt(gram_II[at, at])
    return found


def autocorrelation(increments_II: Array, lags: int) -> list[dict[str, Any]]:
    """Return the mean cosine of increments ``lag`` apart, for each lag that has at least two pairs."""
    norms_I = np.sqrt(np.maximum(np.diag(increments_II), 0.0))
    found = []
    for lag in range(1, min(lags, len(increments_II) - 2) + 1):
        pairs = [
            increments_II[at, at + lag] / (norms_I[at] * norms_I[at + lag])
            for at in range(len(increments_II) - lag)
            if norms_I[at] > 0 and norms_I[at + lag] > 0
        ]
        if pairs:
            found.append({"lag": lag, "value": float(np.mean(pairs)), "pairs": len(pairs)})
    return found
