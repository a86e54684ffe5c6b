"""What the inner products of a run's increments say: how many directions, drift or not, memory or not.

The K x K Gram matrix is all of a trajectory that rotations of weight space leave alone. Everything here is about the run as a
whole; single weights are `regression`'s.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from core.dynamics.tensor_file import Array
from core.streams import stream_seed

_EXACT_FLIPS = 14
_RANDOM_FLIPS = 8192
LAG_SPAN = 50
_CLOSE = (
    f"increments span less than {LAG_SPAN} steps, so the optimizer's momentum alone makes neighbours agree; "
    "a small p-value is no evidence of drift"
)
_LAG_POINTS = 4


@dataclass(frozen=True)
class PathGram:
    """``gram_KK`` holds the inner products of w_k - w_0 over all weights, at ``steps``."""

    steps: tuple[int, ...]
    gram_KK: Array

    @property
    def increments(self) -> Array:
        """Inner products of the K - 1 increments w_{k+1} - w_k."""
        difference_IK = np.diff(np.eye(len(self.steps)), axis=0)
        return np.asarray(difference_IK @ self.gram_KK @ difference_IK.T)

    def at(self, rows: Sequence[int]) -> "PathGram":
        """Return the Gram matrix of a part of the points."""
        return PathGram(tuple(self.steps[row] for row in rows), self.gram_KK[np.ix_(rows, rows)])


def effective_rank(gram_II: Array) -> float | None:
    """Participation ratio of the eigenvalues, (sum)^2 / sum of squares: between 1 and their number. None when all are 0."""
    squares = float((gram_II**2).sum())
    return float(np.trace(gram_II) ** 2 / squares) if squares else None


def independent_directions(path: PathGram) -> float | None:
    """Estimate in how many independent directions the increments scatter around their mean.

    A walk in r directions has increments whose squared cosines average 1 / r; taking out the drift from I increments adds
    1 / (I - 1)^2. Large (infinite) when the cosines are no larger than that; None when there is no scatter at all.
    """
    gaps_I = np.diff(np.asarray(path.steps, dtype=np.float64))
    weights_I = np.sqrt(gaps_I)
    scaled_II = path.increments / np.outer(weights_I, weights_I)
    # In units of sqrt(time) a drift is along sqrt(gap): project it out.
    along_I = weights_I / np.linalg.norm(weights_I)
    projection_II = np.eye(len(gaps_I)) - np.outer(along_I, along_I)
    residual_II = projection_II @ scaled_II @ projection_II
    norms_I = np.sqrt(np.maximum(np.diag(residual_II), 0.0))
    if not (norms_I > 0).all():
        return None
    cosines_II = residual_II / np.outer(norms_I, norms_I)
    count = len(gaps_I)
    mean_square = (float((cosines_II**2).sum()) - count) / (count * (count - 1))
    excess = mean_square - 1.0 / (count - 1) ** 2
    return 1.0 / excess if excess > 0 else float("inf")


def path_r2(path: PathGram, signs_FI: Array | None = None) -> Array:
    """Return the R2 of the straight line through the whole path, for each row of flipped increments (default: none flipped).

    It is the mean of the weights' R2, each weighted by its own variance along the path.
    """
    steps_K = np.asarray(path.steps, dtype=np.float64)
    count = len(steps_K)
    signs_FI = np.ones((1, count - 1)) if signs_FI is None else signs_FI
    slope_K = (steps_K - steps_K.mean()) / np.linalg.norm(steps_K - steps_K.mean())
    cumulate_KI = np.tril(np.ones((count, count - 1)), k=-1)
    centred_KI = cumulate_KI - cumulate_KI.mean(axis=0)
    along_I = slope_K @ cumulate_KI
    gram_II = path.increments
    explained_F = np.einsum("fi,ij,fj->f", signs_FI, gram_II * np.outer(along_I, along_I), signs_FI, optimize=True)
    total_F = np.einsum("fi,ij,fj->f", signs_FI, gram_II * (centred_KI.T @ centred_KI), signs_FI, optimize=True)
    r2_F: Array = np.divide(explained_F, total_F, out=np.zeros_like(explained_F), where=total_F > 0)
    return r2_F


def sign_flip(path: PathGram, seed: int) -> dict[str, Any]:
    """Compare the path's R2 with that of the same increments under flipped signs: chance in this run's own geometry.

    Exact (all sign patterns) up to 14 increments, else a seeded sample with the observed pattern counted in. Noise with
    momentum has increments that agree while they are shorter than its memory, and then a small p-value is no evidence:
    ``caveat`` says so for increments of less than 50 steps.
    """
    count = len(path.steps) - 1
    exact = count <= _EXACT_FLIPS
    signs_FI = _all_signs(count) if exact else _random_signs(count, seed)
    observed = float(path_r2(path)[0])
    flipped_F = path_r2(path, signs_FI)
    at_least = int(np.count_nonzero(flipped_F >= observed * (1 - 1e-12)))
    p_value = at_least / len(signs_FI) if exact else (1 + at_least) / (1 + len(signs_FI))
    low, median, high = (float(value) for value in np.quantile(flipped_F, [0.05, 0.5, 0.95]))
    return {
        "path_r2": observed,
        "flipped": {"low": low, "median": median, "high": high},
        "p_value": float(p_value),
        "smallest_p_value": 1 / len(signs_FI) if exact else 1 / (1 + len(signs_FI)),
        "exact": exact,
        "caveat": None if int(np.diff(path.steps).min()) >= LAG_SPAN else _CLOSE,
    }


def lag_one(path: PathGram) -> dict[str, Any]:
    """Return the mean cosine of neighbouring increments, over increments of at least 50 steps where there are enough.

    Momentum alone makes close increments agree; over 50 steps its memory is gone and what remains is drift (above 0) or
    returning (below 0). ``span`` is the shortest increment used.
    """
    rows = _spaced(path.steps)
    used = path.at(rows) if len(rows) >= _LAG_POINTS else path
    gram_II = used.increments
    norms_I = np.sqrt(np.maximum(np.diag(gram_II), 0.0))
    pairs = [
        float(gram_II[i, i + 1] / (norms_I[i] * norms_I[i + 1]))
        for i in range(len(norms_I) - 1)
        if norms_I[i] > 0 and norms_I[i + 1] > 0
    ]
    return {
        "value": float(np.mean(pairs)) if pairs else None,
        "pairs": len(pairs),
        "span": int(np.diff(used.steps).min()),
    }


def drift_t(path: PathGram) -> float | None:
    """Return the pooled t of the drift: 1 is what a walk gives (root mean square over weights), more is drift.

    Net change per total time over the scatter of increments per time around it, both summed over weights. None without scatter.
    """
    gaps_I = np.diff(np.asarray(path.steps, dtype=np.float64))
    net = float(path.gram_KK[-1, -1]) / float(gaps_I.sum())
    scatter = (float((np.diag(path.increments) / gaps_I).sum()) - net) / (len(gaps_I) - 1)
    return float(np.sqrt(net / scatter)) if scatter > 0 else None


def _spaced(steps: Sequence[int]) -> list[int]:
    rows = [0]
    for row, step in enumerate(steps):
        if step - steps[rows[-1]] >= LAG_SPAN:
            rows.append(row)
    return rows


def _all_signs(count: int) -> Array:
    """All patterns up to a common sign, which changes nothing: the first increment keeps its own."""
    patterns_F = np.arange(2 ** (count - 1))
    bits_FI = (patterns_F[:, None] >> np.arange(count - 1)) & 1
    return np.concatenate([np.ones((len(patterns_F), 1)), 1.0 - 2.0 * bits_FI], axis=1)


def _random_signs(count: int, seed: int) -> Array:
    rng = np.random.default_rng(stream_seed(seed, "linearity", "sign-flip"))
    return 1.0 - 2.0 * rng.integers(2, size=(_RANDOM_FLIPS, count)).astype(np.float64)
