"""R2 of straight lines through paths, and the histogram that holds millions of them.

A path starts at 0 (y_k - y_0), so sums of squares lose no more digits than the path itself spans. No files, no nulls.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.dynamics.tensor_file import Array, Floats

BINS = 1000
_BITS = {4: np.uint32, 8: np.uint64}
_SMALLEST, _LARGEST = 1e-28, 1e28  # squares between these are normal numbers of float32


@dataclass(frozen=True)
class Fits:
    """Per element: ``r2_N`` (0 where constant), ``changed_N``, and what the drift's t is made of.

    ``net_N`` is the last change, ``drift_N`` its square over the total time, ``scatter_N`` the variance per time of the
    increments around it.
    """

    r2_N: Floats
    changed_N: NDArray[np.bool_]
    net_N: Floats
    drift_N: Floats
    scatter_N: Floats

    @property
    def t_N(self) -> Floats:
        """Student's t of the drift, 0 where there is none."""
        with np.errstate(divide="ignore", invalid="ignore"):
            t_N = np.sign(self.net_N) * np.sqrt(self.drift_N / self.scatter_N)
        return np.where(self.drift_N > 0, t_N, 0.0)

    def drifting(self, critical_t: float) -> int:
        """Return how many elements have a t beyond ``critical_t`` on either side."""
        return int(np.count_nonzero(self.drift_N > self.drift_N.dtype.type(critical_t**2) * self.scatter_N))


def fit_lines(path_KN: Array, steps: Sequence[int] | Array) -> Fits:
    """Regress each column of ``path_KN`` on ``steps``; the first row must be the origin (all zeros). See :func:`fit_paths`."""
    return fit_paths(path_KN[1:], steps)


def fit_paths(path_JN: Floats, steps: Sequence[int] | Array) -> Fits:
    """Regress each path on the K ``steps``; ``path_JN`` has the J = K - 1 points after the origin.

    R2 = corr(t, y)^2. The drift's t is that of a walk with drift: net change over the total time, against the scatter of the
    increments around it, each increment weighted by its time: Student's t with K - 2 degrees of freedom for a Gaussian walk.

    The arithmetic is done in the paths' dtype. Centred columns are squared, so nothing cancels: in float32 R2 is within K times
    2e-7 of the float64 value (the tests hold it to 2e-6 at K = 14). Columns whose squares leave float32 are done in float64.
    """
    fits = _fit(path_JN, np.asarray(steps, dtype=np.float64))
    if path_JN.dtype == np.float64:
        return fits
    size_N = fits.drift_N + fits.scatter_N
    normal_N = size_N > _SMALLEST
    normal_N &= size_N < _LARGEST
    faint = () if normal_N.all() else np.flatnonzero(fits.changed_N & ~normal_N)
    if len(faint):
        exact = fit_paths(path_JN[:, faint].astype(np.float64), steps)
        fits.r2_N[faint] = exact.r2_N
        # Only the ratio of the two matters from here on, and float64 values may not fit.
        fits.drift_N[faint] = np.square(exact.t_N)
        fits.scatter_N[faint] = np.isfinite(exact.t_N)
    return fits


def _fit(path_JN: Floats, t_K: Array) -> Fits:
    """Sums over so few rows are einsum's: BLAS is no faster, and would start threads of its own beside the caller's."""
    count, total, real = len(t_K), t_K[-1] - t_K[0], path_JN.dtype.type
    centred_K = t_K - t_K.mean()
    slope_J = (centred_K[1:] / np.linalg.norm(centred_K)).astype(real)
    per_time_J = (1.0 / np.diff(t_K)).astype(real)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        along_N = np.einsum("j,jn->n", slope_J, path_JN)
        mean_N = np.add.reduce(path_JN, axis=0)
        mean_N *= real(1 / count)
        work_JN = path_JN - mean_N
        spread_N = np.einsum("jn,jn->n", work_JN, work_JN)
        mean_N *= mean_N
        spread_N += mean_N
        along_N *= along_N
        along_N /= spread_N
        r2_N = np.minimum(along_N, real(1), out=along_N)
        work_JN[0] = path_JN[0]
        np.subtract(path_JN[1:], path_JN[:-1], out=work_JN[1:])
        work_JN *= work_JN
        scatter_N = np.einsum("j,jn->n", per_time_J, work_JN)
        drift_N = np.square(path_JN[-1])
        drift_N *= real(1 / total)
        scatter_N -= drift_N
        np.maximum(scatter_N, real(0), out=scatter_N)
        scatter_N *= real(1 / (count - 2))
        changed_N = _changed(path_JN, drift_N, scatter_N)
    if not changed_N.all():
        r2_N[~changed_N] = 0
    return Fits(r2_N, changed_N, path_JN[-1], drift_N, scatter_N)


def _changed(path_JN: Floats, drift_N: Floats, scatter_N: Floats) -> NDArray[np.bool_]:
    """Which paths hold anything but 0: the bits decide where squares that vanished might hide a change."""
    changed_N = drift_N + scatter_N > 0
    if not changed_N.all():
        bits_N = np.bitwise_or.reduce(path_JN.view(_BITS[path_JN.dtype.itemsize]), axis=0)
        # Every bit but the sign: -0 is no change.
        changed_N = (bits_N << 1) != 0
    return changed_N


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

    def add(self, r2_N: Floats, changed_N: NDArray[np.bool_]) -> None:
        """Add elements; ``r2_N`` must lie in [0, 1], and be 0 where ``changed_N`` is not."""
        constant = len(r2_N) - int(np.count_nonzero(changed_N))
        self.elements += len(r2_N)
        self.constant += constant
        self.above += int(np.count_nonzero(r2_N > r2_N.dtype.type(self.threshold)))
        self.total += float(r2_N.sum(dtype=np.float64))
        # One bin more for R2 of exactly 1.
        counts = np.bincount((r2_N * r2_N.dtype.type(BINS)).astype(np.intp), minlength=BINS + 1)
        counts[BINS - 1] += counts[BINS]
        counts[0] -= constant
        self.counts_B += counts[:BINS]

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
