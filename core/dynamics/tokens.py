"""Linearity in the outputs: the log-prob and the logit of every probed token along the checkpoints (paper: 4.2, B.2).

Categories follow the paper's: tokens of high variance that are linear, of high variance that are not, and of low variance.
The paper names no border between high and low; here the upper quarter of the variances is high.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from core.dynamics.chance import linearity_of_paths
from core.dynamics.nulls import Drive
from core.dynamics.probes import ProbeSequence
from core.dynamics.scoring import along, check_vocabulary, probe_batches, score_tokens
from core.dynamics.tables import Columns
from core.dynamics.tensor_file import Array
from core.dynamics.trajectory import Point
from core.rl.lean import lean_layers

HIGH_QUANTILE = 0.75
_TOP_TOKENS = 20
_SHOWN_PROBES = 8
_SHOWN_TOKENS = 512
_VARIANCE_BINS = 24
_R2_BINS = 20

Quantity = Literal["logp", "logit"]


def score_points(
    points: Sequence[Point],
    probes: Sequence[ProbeSequence],
    *,
    dtype: torch.dtype,
    device: torch.device,
    progress: Callable[[int, int], None],
) -> dict[Quantity, Array]:
    """Return [K, T] log-probs and logits of the probes' T completion tokens at each of K checkpoints, jumps taken out."""
    count = sum(len(one.completion_ids) for one in probes)
    batches = probe_batches(probes, device)

    def measure(model: PreTrainedModel, point: Point) -> Array:
        check_vocabulary(model, point, probes)
        with lean_layers(model):
            return torch.stack(score_tokens(model, batches, count)).double().numpy()

    both_K2T = np.stack(along(points, measure, dtype=dtype, device=device, progress=progress))
    return {"logp": both_K2T[:, 0], "logit": both_K2T[:, 1]}


def token_result(
    values_KT: Array,
    steps: tuple[int, ...],
    probes: Sequence[ProbeSequence],
    tokenizer: PreTrainedTokenizerBase,
    *,
    noun: str,
    threshold: float,
    seed: int,
    drive: Drive | None,
) -> tuple[dict[str, Any], dict[str, Columns]]:
    """Measure the tokens' trajectories; return the result and the table of all of them."""
    path_JT = values_KT[1:] - values_KT[0]
    result, r2_T = linearity_of_paths(path_JT, steps, noun=noun, threshold=threshold, seed=seed, drive=drive)
    slope_T, variance_T = slopes(values_KT, steps), values_KT.var(axis=0)
    tokens = _Tokens(probes, tokenizer)
    high = float(np.quantile(variance_T, HIGH_QUANTILE)) if len(variance_T) else 0.0
    category_T = categories(variance_T, r2_T, high=high, threshold=threshold)
    result |= {
        "probe": {
            "sequences": len(probes),
            "tokens": len(tokens.ids),
            "items": len({one.item for one in probes}),
        },
        "categories": {
            "high_variance": high,
            "note": "high variance is the upper quarter of the tokens' variances over the checkpoints",
            **{name: tokens.summary(category_T == name, slope_T, r2_T, variance_T) for name in CATEGORIES},
        },
        "larger_shift_is_more_linear": _rank_correlation(variance_T, r2_T),
        "density": _density(variance_T, r2_T),
        "text": tokens.text(slope_T, r2_T, variance_T, category_T),
    }
    return result, {"tokens": tokens.table(values_KT, slope_T, r2_T, variance_T, category_T)}


CATEGORIES = ("high_variance_high_r2", "high_variance_low_r2", "low_variance")


def categories(variance_T: Array, r2_T: Array, *, high: float, threshold: float) -> Any:
    """Return each token's category; a token that never changes is of low variance."""
    loud_T = (variance_T >= high) & (variance_T > 0)
    return np.where(loud_T, np.where(r2_T > threshold, CATEGORIES[0], CATEGORIES[1]), CATEGORIES[2])


def slopes(values_KT: Array, steps: Sequence[int]) -> Array:
    """Return the least-squares slope per step of each column."""
    centred_K = np.asarray(steps, dtype=np.float64) - np.mean(steps)
    found: Array = centred_K @ (values_KT - values_KT[0]) / (centred_K @ centred_K)
    return found


class _Tokens:
    """The probes' completion tokens in one row, with their texts."""

    def __init__(self, probes: Sequence[ProbeSequence], tokenizer: PreTrainedTokenizerBase) -> None:
        self._probes = probes
        self.ids = np.array([token for one in probes for token in one.completion_ids], dtype=np.int64)
        self._texts = {int(token): str(tokenizer.decode([int(token)])) for token in np.unique(self.ids)}

    def summary(self, mask_T: Any, slope_T: Array, r2_T: Array, variance_T: Array) -> dict[str, Any]:
        """Count a category and name the tokens that are in it most often, with their mean slope and R2."""
        chosen, total = self.ids[mask_T], len(self.ids)
        most = Counter(chosen.tolist()).most_common(_TOP_TOKENS)
        return {
            "tokens": len(chosen),
            "share": len(chosen) / total if total else None,
            "top": [
                {
                    "token_id": token,
                    "text": self._texts[token],
                    "count": count,
                    "share_of_its_positions": count / int((self.ids == token).sum()),
                    "mean_slope": float(slope_T[mask_T & (self.ids == token)].mean()),
                    "mean_r2": float(r2_T[mask_T & (self.ids == token)].mean()),
                    "mean_variance": float(variance_T[mask_T & (self.ids == token)].mean()),
                }
                for token, count in most
            ],
        }

    def text(self, slope_T: Array, r2_T: Array, variance_T: Array, category_T: Any) -> list[dict[str, Any]]:
        """The first probes as texts, token by token, for a reader; the table has all."""
        shown, at = [], 0
        for one in self._probes[:_SHOWN_PROBES]:
            places = range(at, at + min(len(one.completion_ids), _SHOWN_TOKENS))
            shown.append(
                {
                    "item": one.item,
                    "sample": one.sample,
                    "left_out": len(one.completion_ids) - len(places),
                    "tokens": [self._texts[int(self.ids[place])] for place in places],
                    "slope": [float(slope_T[place]) for place in places],
                    "r2": [float(r2_T[place]) for place in places],
                    "variance": [float(variance_T[place]) for place in places],
                    "category": [str(category_T[place]) for place in places],
                }
            )
            at += len(one.completion_ids)
        return shown

    def table(
        self, values_KT: Array, slope_T: Array, r2_T: Array, variance_T: Array, category_T: Any
    ) -> dict[str, Any]:
        """One row per token, its whole trajectory included."""
        lengths = [len(one.completion_ids) for one in self._probes]
        return {
            "probe": np.repeat(np.arange(len(lengths)), lengths),
            "item": [one.item for one in self._probes for _ in one.completion_ids],
            "sample": np.repeat([one.sample for one in self._probes], lengths).astype(np.int64),
            "position": np.concatenate([np.arange(length) for length in lengths] or [np.arange(0)]),
            "token_id": self.ids,
            "text": [self._texts[int(token)] for token in self.ids],
            "r2": r2_T,
            "slope": slope_T,
            "variance": variance_T,
            "category": category_T.tolist(),
            "values": np.ascontiguousarray(values_KT.T),
        }


def probe_table(probes: Sequence[ProbeSequence]) -> Columns:
    """The sequences themselves, so that an analysis can be repeated with ``token_ids``."""
    return {
        "item": [one.item for one in probes],
        "sample": [one.sample for one in probes],
        "prompt_ids": [list(one.prompt_ids) for one in probes],
        "completion_ids": [list(one.completion_ids) for one in probes],
    }


def _rank_correlation(variance_T: Array, r2_T: Array) -> float | None:
    """Spearman's correlation of variance and R2 over the tokens that change (the paper's association)."""
    from scipy import stats

    moved = variance_T > 0
    if moved.sum() < 3:
        return None
    value = float(stats.spearmanr(variance_T[moved], r2_T[moved]).statistic)
    return value if np.isfinite(value) else None


def _density(variance_T: Array, r2_T: Array) -> dict[str, Any] | None:
    """Tokens per cell of log variance and R2, for the figure; those that never change are left out."""
    moved = variance_T > 0
    if not moved.any():
        return None
    logs_T = np.log10(variance_T[moved])
    low, high = float(np.floor(logs_T.min())), float(np.ceil(logs_T.max()))
    counts, edges_V, edges_R = np.histogram2d(
        logs_T, r2_T[moved], bins=(_VARIANCE_BINS, _R2_BINS), range=((low, max(high, low + 1)), (0, 1))
    )
    return {
        "log10_variance": ((edges_V[:-1] + edges_V[1:]) / 2).tolist(),
        "r2": ((edges_R[:-1] + edges_R[1:]) / 2).tolist(),
        "counts": counts.T.astype(int).tolist(),
    }
