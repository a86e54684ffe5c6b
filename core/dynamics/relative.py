"""How far weights moved relative to where they began, and how linear those are that moved far (the paper's 5 % question).

The bins choose weights by their net change, and choosing so raises R2 by itself (`nulls`): compare bins with each other only.
"""

from itertools import pairwise
from typing import Any

import numpy as np

from core.dynamics.regression import Fits
from core.dynamics.tensor_file import Floats

EDGES = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 5e-2, 1e-1, 1.0)


class RelativeChange:
    """Counts per bin of |w_last - w_first| / |w_first|. Weights that began at 0 have a bin of their own."""

    def __init__(self, threshold: float) -> None:
        self._threshold = threshold
        bins = len(EDGES) + 2
        self._count_B = np.zeros(bins, dtype=np.int64)
        self._above_B = np.zeros(bins, dtype=np.int64)
        self._r2_B = np.zeros(bins)

    def add(self, initial_N: Floats, fits: Fits) -> None:
        """Add the weights that changed at some checkpoint."""
        real = initial_N.dtype.type
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            relative_N = np.abs(fits.net_N)
            relative_N /= np.abs(initial_N)
        # A count of the edges at or below is faster than a search; 0 / 0 is below all of them.
        bins_N = np.zeros(len(initial_N), dtype=np.uint8)
        reached_N = np.empty(len(initial_N), dtype=np.bool_)
        for edge in EDGES:
            bins_N += np.greater_equal(relative_N, real(edge), out=reached_N).view(np.uint8)
        bins_N[initial_N == 0] = len(EDGES) + 1
        # Two codes a bin, the odd one for R2 above the threshold. Constant weights have R2 0 here.
        codes_N = bins_N.astype(np.intp)
        codes_N *= 2
        codes_N += fits.r2_N > real(self._threshold)
        size = 2 * len(self._count_B)
        counts_B2 = np.bincount(codes_N, minlength=size).reshape(-1, 2)
        if not fits.changed_N.all():
            counts_B2 -= np.bincount(codes_N[~fits.changed_N], minlength=size).reshape(-1, 2)
        self._count_B += counts_B2.sum(axis=1)
        self._above_B += counts_B2[:, 1]
        self._r2_B += np.bincount(codes_N, weights=fits.r2_N, minlength=size).reshape(-1, 2).sum(axis=1)

    def merge(self, other: "RelativeChange") -> None:
        """Add the counts of another of the same threshold."""
        self._count_B += other._count_B
        self._above_B += other._above_B
        self._r2_B += other._r2_B

    def document(self) -> dict[str, Any]:
        """Return the bins in order, lower edge included, and what they may be compared with."""
        total = int(self._count_B.sum())
        edges: list[float | None] = [0.0, *EDGES, None]
        bins = [{"from": low, "to": high, **self._bin(at, total)} for at, (low, high) in enumerate(pairwise(edges))]
        return {
            "bins": bins,
            "began_at_zero": self._bin(len(EDGES) + 1, total),
            "note": "bins choose weights by their net change, which raises R2 by itself; compare bins with each other only",
        }

    def _bin(self, at: int, total: int) -> dict[str, Any]:
        count = int(self._count_B[at])
        return {
            "weights": count,
            "share": count / total if total else None,
            "mean_r2": float(self._r2_B[at]) / count if count else None,
            "share_above": int(self._above_B[at]) / count if count else None,
        }
