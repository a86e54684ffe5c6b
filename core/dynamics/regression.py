"""R2 of straight lines through paths, and the histogram that holds millions of them.

A path starts at 0 (y_k - y_0), so sums of squares lose no more digits than the path itself spans. No files, no nulls.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.dynamics.tensor_file import Array

BINS = 1000


@dataclass(frozen=True)
class Fits:
    """Per element: ``r2_N`` (0 where constant), ``changed_N``, and the drift's ``t_N`` (0 where constant)."""

    r2_N: Array
    t_N: Array
    changed_N: NDArray[np.bool_]


def fit_lines(path_KN: Array, steps: Sequence[int] | Array) -> Fits:
    """Regress each column of ``path_KN`` on ``steps``; the first row must be the origin (all zeros).

    R2 = corr(t, y)^2. The drift's t is that of a walk with drift: net change over the total time, against the scatter of the
    increments around it, each increment weighted by its time: Student's t with K - 2 degrees of freedom for a Gaussian walk.
    """
    t_K = np.asarray(steps, dtype=np.float64)
    count, total = len(t_K), t_K[-1] - t_K[0]
    # Sums over k by one small matrix product: the sum of y, and the sum of (t - mean t) y.
    sums_2N = np.stack([np.ones(count), t_K - t_K.mean()]) @ path_KN
    squares_N = np.einsum("kn,kn->n", path_KN, path_KN)
    changed_N = squares_N > 0
    spread_N = squares_N - sums_2N[0] ** 2 / count
    with np.errstate(divide="ignore", invalid="ignore"):
        r2_N = sums_2N[1] ** 2 / (((t_K - t_K.mean()) ** 2).sum() * spread_N)
    r2_N = np.where(changed_N, np.clip(r2_N, 0.0, 1.0), 0.0)
    increments_KN = path_KN[1:] - path_KN[:-1]
    increments_KN *= increments_KN
    drift_N = path_KN[-1] ** 2 / total
    scatter_N = np.maximum((1.0 / np.diff(t_K)) @ increments_KN - drift_N, 0.0) / (count - 2)
    with np.errstate(divide="ignore", invalid="ignore"):
        t_N = np.sign(path_KN[-1]) * np.sqrt(drift_N / scatter_N)
    return Fits(r2_N, np.where(drift_N > 0, t_N, 0.0), changed_N)


@dataclass
class R2Histogram:
    """R2 of many elements in ``BINS`` equal bins, with exact counts, mean and share above ``threshold``.

    Constant elements are counted and are in no other number.
    """

    threshold: float
    elements: int = 0
    constant: int = 0
    above: int = 0
    total: float = 0.0
    counts_B: NDArray[np.int64] = field(default_factory=lambda: np.zeros(BINS, dtype=np.int64))

    def add(self, r2_N: Array, changed_N: NDArray[np.bool_]) -> None:
        """Add elements; ``r2_N`` must lie in [0, 1]."""
        kept_N = r2_N if changed_N.all() else r2_N[changed_N]
        self.elements += len(r2_N)
        self.constant += len(r2_N) - len(kept_N)
        self.above += int(np.count_nonzero(kept_N > self.threshold))
        self.total += float(kept_N.sum())
        bins_N = np.minimum((kept_N * BINS).astype(np.int64), BINS - 1)
        self.counts_B += np.bincount(bins_N, minlength=BINS)

    def merge(self, other: "R2Histogram") -> None:
        """Add another histogram of the same threshold."""
        self.elements += other.elements
        self.constant += other.constant
        self.above += other.above
        self.total += other.total
        self.counts_B += other.counts_B

    @property
    def kept(self) -> int:
        """Elements that are not constant."""
        return self.elements - self.constant

    @property
    def mean(self) -> float | None:
        """Mean R2, exact; None without elements."""
        return self.total / self.kept if self.kept else None

    @property
    def share_above(self) -> float | None:
        """Share of the elements with R2 above the threshold, exact; None without elements."""
        return self.above / self.kept if self.kept else None

    def quantile(self, q: float) -> float | None:
        """Return a quantile, interpolated within its bin, so within 1 / BINS of the exact one."""
        if not self.kept:
            return None
        cumulated_B = np.cumsum(self.counts_B)
        rank = q * self.kept
        at = min(int(np.searchsorted(cumulated_B, rank, side="left")), BINS - 1)
        before = float(cumulated_B[at] - self.counts_B[at])
        inside = (rank - before) / float(self.counts_B[at]) if self.counts_B[at] else 0.0
        return (at + inside) / BINS

    def coarse(self, bins: int) -> list[int]:
        """Return the counts in ``bins`` equal bins; ``bins`` must divide ``BINS``."""
        return [int(count) for count in self.counts_B.reshape(bins, -1).sum(axis=1)]

    def summary(self) -> dict[str, Any]:
        """Return counts, mean, quartiles and share above the threshold."""
        return {
            "elements": self.elements,
            "constant": self.constant,
            "mean": self.mean,
            "q1": self.quantile(0.25),
            "median": self.quantile(0.5),
            "q3": self.quantile(0.75),
            "share_above": self.share_above,
        }
