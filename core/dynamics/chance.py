"""What a set of R2 values means: the excess over the nulls, the band of one run's chance, and what the run as a whole shows.

The same for weights, tokens, logits and activations: each is a set of paths over the same steps with a Gram matrix.
"""

from typing import Any, Literal

import numpy as np
from scipy import stats

from core.dynamics import gram, nulls
from core.dynamics.regression import BINS, R2Histogram, fit_paths
from core.dynamics.statement import of
from core.dynamics.tensor_file import Array

FIGURE_BINS = 50
_MOST_GRAM_POINTS = 64
_CRITICAL = 0.975


def chance(
    observed: R2Histogram,
    path: gram.PathGram,
    *,
    seed: int,
    drive: nulls.Drive | None,
    rounding: nulls.Rounding | None = None,
) -> dict[str, Any]:
    """Compare with the nulls: the excess over the headline's null, the nulls themselves, and the band of one run."""
    threshold, steps = observed.threshold, path.steps
    names: tuple[Literal["plain", "driven"], ...] = ("plain",) if drive is None else ("plain", "driven")
    documents: dict[str, Any] = {}
    for name in names:
        walks_KN = nulls.walks_of(name, steps, drive, seed)
        view = nulls.view_of(walks_KN, rounding, seed)
        histogram = nulls.null_histogram(walks_KN, steps, threshold=threshold, view=view)
        documents[name] = nulls.null_document(histogram, bins=FIGURE_BINS)
    headline = documents[names[-1]]
    directions, share = gram.independent_directions(path), observed.share_above
    band = None
    if directions is not None and share is not None:
        # The walks and the view of the last null named are the headline's.
        band = nulls.chance_band(
            walks_KN, steps, directions=directions, observed=share, threshold=threshold, view=view, seed=seed
        )
    return {
        "excess": {
            "over": names[-1],
            "share_above": _minus(share, headline["share_above"]),
            "mean": _minus(observed.mean, headline["mean"]),
            "median": _minus(observed.quantile(0.5), headline["median"]),
        },
        "chance_band": band,
        "nulls": documents,
        "null_rounded_as": rounding.dtype if rounding else None,
        "driven_by": None
        if drive is None
        else {"optimizer": drive.optimizer, "beta1": drive.beta1, "beta2": drive.beta2,
              "updates_per_step": drive.updates_per_step},
    }  # fmt: skip


def run_level(path: gram.PathGram, *, drifting: int, kept: int, seed: int) -> dict[str, Any]:
    """Return what the inner products of the increments say about the run as a whole."""
    directions = gram.independent_directions(path)
    small = len(path.steps) <= _MOST_GRAM_POINTS
    return {
        "effective_rank": gram.effective_rank(path.increments),
        "increments": len(path.steps) - 1,
        "independent_directions": None if directions is None or not np.isfinite(directions) else directions,
        "sign_flip": gram.sign_flip(path, seed),
        "lag_1": gram.lag_one(path),
        "drift_t": gram.drift_t(path),
        "drifting_share": drifting / kept if kept else None,
        "drifting_share_of_a_walk": 0.05,
        "increments_gram": path.increments.tolist() if small else None,
    }


def linearity_of_paths(
    path_JN: Array, steps: tuple[int, ...], *, noun: str, threshold: float, seed: int, drive: nulls.Drive | None
) -> tuple[dict[str, Any], Array]:
    """Measure paths held in memory (differences from the first point, float64); return the result and R2 per path."""
    fits = fit_paths(path_JN, steps)
    observed = R2Histogram(threshold)
    observed.add(fits.r2_N, fits.changed_N)
    gram_KK = np.zeros((len(steps), len(steps)))
    gram_KK[1:, 1:] = path_JN @ path_JN.T
    path = gram.PathGram(steps, gram_KK)
    critical = float(stats.t.ppf(_CRITICAL, len(steps) - 2))
    result = {
        "trajectory": {
            "steps": list(steps),
            "checkpoints": len(steps),
            "measured": observed.elements,
            "kept": observed.kept,
            "kept_share": observed.kept / observed.elements if observed.elements else None,
            "constant": observed.constant,
        },
        "threshold": threshold,
        "r2": {**observed.summary(), "quantile_resolution": 1 / BINS},
        "histogram": observed.coarse(FIGURE_BINS),
        **chance(observed, path, seed=seed, drive=drive),
        "run_level": run_level(path, drifting=fits.drifting(critical), kept=observed.kept, seed=seed),
        "unit_of_claim": "run",
        "noun": noun,
    }
    r2_N: Array = np.asarray(fits.r2_N, dtype=np.float64)
    return {"statement": of(result), **result}, r2_N


def _minus(observed: float | None, expected: float | None) -> float | None:
    return None if observed is None or expected is None else observed - expected
