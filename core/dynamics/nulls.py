"""What chance alone looks like: random walks over the same steps, and the R2 their straight lines reach.

A plain walk over 14 checkpoints has mean R2 0.44 and 27 % of series above 0.7. Keeping only walks whose net change exceeds two
standard deviations of one increment (58 % of them: "those that moved") lifts this to 0.61 and 45 %, because the net change is
what a slope is made of. Under momentum, neighbouring increments agree, so short runs look straight: median R2 is near 0.9 over
10 updates at momentum 0.9 and 0.5 over 400.

A walk is per weight and weights are taken as independent; how much fewer directions a run really has widens the chance band
(:func:`chance_band`). Clipping, weight decay and Adam's eps are not simulated.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from core.dynamics.regression import R2Histogram, fit_lines
from core.dynamics.tensor_file import Array
from core.streams import stream_seed

WALKS = 20_000
_FEWEST = 2_000
_BUDGET = 60_000_000  # element-updates of a driven walk; beyond it fewer walks are drawn, down to _FEWEST
_CELLS = 1 << 20  # numbers of all walks together: 8 MiB
_BAND_REPLICATES = 400
_BAND_WALKS = 2_000
_BAND_COLUMNS = 200  # walks multiplied at a time: so few that BLAS does not divide the work among threads
_SIMULATED_DIRECTIONS = 64
MOST_DIRECTIONS = 1024
_SATURATED = 0.995


@dataclass(frozen=True)
class Drive:
    """An optimizer that turns white gradient noise into weight changes.

    ``beta1`` is SGD's momentum under ``sgd``. ``rates`` holds the learning rate of every update up to the last step analysed;
    only their ratios matter. A step is ``updates_per_step`` updates.
    """

    optimizer: Literal["adamw", "sgd"]
    beta1: float
    beta2: float
    rates: tuple[float, ...]
    updates_per_step: int = 1


@dataclass(frozen=True)
class Rounding:
    """The number format of the folders: weights seen only through it move in leaps or not at all.

    ``initial_M`` are starting values of changing weights, ``moving`` the share of their increments that are not exactly 0.
    """

    dtype: Literal["BF16", "F16"]
    initial_M: Array
    moving: float


def plain_walks(steps: Sequence[int], n: int, rng: np.random.Generator) -> Array:
    """Return [K, n] independent Gaussian walks from 0; an increment's variance is the steps it spans."""
    gaps_K = np.sqrt(np.diff(np.asarray(steps, dtype=np.float64)))
    increments_KN = rng.standard_normal((len(gaps_K), n)) * gaps_K[:, None]
    return _paths(increments_KN)


def driven_walks(steps: Sequence[int], drive: Drive, n: int, rng: np.random.Generator) -> Array:
    """Return [K, n] walks of weights whose gradients are white noise, under ``drive``, as differences from the first step.

    Moments start at update 0, wherever the trajectory starts.
    """
    wanted = {step * drive.updates_per_step: row for row, step in enumerate(steps)}
    if steps[-1] * drive.updates_per_step > len(drive.rates):
        raise ValueError(f"step {steps[-1]} needs {steps[-1] * drive.updates_per_step} rates, got {len(drive.rates)}")
    walks_KN = np.zeros((len(steps), n))
    weight_N, first_N, second_N = np.zeros(n), np.zeros(n), np.zeros(n)
    for update in range(1, steps[-1] * drive.updates_per_step + 1):
        gradient_N = rng.standard_normal(n)
        rate = drive.rates[update - 1]
        if drive.optimizer == "sgd":
            first_N = drive.beta1 * first_N + gradient_N
            weight_N = weight_N - rate * first_N
        else:
            first_N = drive.beta1 * first_N + (1 - drive.beta1) * gradient_N
            second_N = drive.beta2 * second_N + (1 - drive.beta2) * gradient_N**2
            corrected = np.sqrt(second_N / (1 - drive.beta2**update))
            weight_N = weight_N - rate * (first_N / (1 - drive.beta1**update)) / corrected
        if update in wanted:
            walks_KN[wanted[update]] = weight_N
    walks_KN -= walks_KN[0].copy()
    return walks_KN


def moved(walks_KN: Array, steps: Sequence[int], deviations: float = 2.0) -> Array:
    """Keep plain walks whose net change exceeds ``deviations`` standard deviations of a mean-sized increment."""
    gap = (steps[-1] - steps[0]) / (len(steps) - 1)
    kept_KN: Array = walks_KN[:, np.abs(walks_KN[-1]) > deviations * np.sqrt(gap)]
    return kept_KN


def walks_of(name: Literal["plain", "driven"], steps: Sequence[int], drive: Drive | None, seed: int) -> Array:
    """Draw the walks of one null from its own stream; the driven one has fewer walks where the training was long."""
    rng = np.random.default_rng(stream_seed(seed, "linearity", "null", name))
    most = min(WALKS, max(_FEWEST, _CELLS // len(steps)))
    if name == "plain" or drive is None:
        return plain_walks(steps, most, rng)
    updates = max(1, steps[-1] * drive.updates_per_step)
    return driven_walks(steps, drive, int(np.clip(_BUDGET // updates, _FEWEST, most)), rng)


def null_histogram(walks_KN: Array, steps: Sequence[int], *, threshold: float, view: "View") -> R2Histogram:
    """Return the R2 of walks after the same treatment as weights: seen as stored, constant ones left out."""
    histogram = R2Histogram(threshold)
    fits = fit_lines(view(walks_KN), steps)
    histogram.add(fits.r2_N, fits.changed_N)
    return histogram


def null_document(histogram: R2Histogram, *, bins: int) -> dict[str, Any]:
    """Return a null as the result shows it, with the error that comes from its number of walks alone."""
    share = histogram.share_above
    error = None if share is None else float(np.sqrt(share * (1 - share) / histogram.kept))
    return {
        "walks": histogram.elements,
        "kept_share": histogram.kept / histogram.elements,
        **{key: value for key, value in histogram.summary().items() if key not in ("elements", "constant")},
        "share_above_error": error,
        "histogram": histogram.coarse(bins),
    }


View = Callable[[Array], Array]


def view_of(walks_KN: Array, rounding: Rounding | None, seed: int) -> View:
    """Return how walks of the size of ``walks_KN`` look through ``rounding``, from starting values of the weights themselves.

    All walks have one step size, as under Adam; it is chosen so that the share of increments that are not 0, among walks that
    moved at all, is the observed one. Without rounding, and where nearly all observed increments move so that it does not
    matter, walks look as they are.
    """
    if rounding is None or rounding.moving >= _SATURATED or not len(rounding.initial_M):
        return lambda walks_KN: walks_KN
    dtype, initial_M = rounding.dtype, rounding.initial_M
    size = float(np.sqrt(np.mean(np.diff(walks_KN, axis=0) ** 2)))

    def seen(walks_KN: Array, scale: float) -> Array:
        rng = np.random.default_rng(stream_seed(seed, "linearity", "null", "rounding"))
        stored_N = initial_M[rng.integers(len(initial_M), size=walks_KN.shape[1])]
        # The unrounded start lies anywhere in the interval that rounds to the stored value.
        start_N = stored_N + (rng.random(len(stored_N)) - 0.5) * _spacing(stored_N, dtype)
        rounded_KN = _rounded(start_N + scale / size * walks_KN, dtype)
        path_KN: Array = rounded_KN - rounded_KN[0]
        return path_KN

    spacing = float(np.median(_spacing(initial_M, dtype)))
    fitted = _matching_scale(lambda scale: moving_share(seen(walks_KN, scale)), rounding.moving, spacing)
    return lambda walks_KN: seen(walks_KN, fitted)


def moving_share(path_KN: Array) -> float:
    """Return the share of increments that are not exactly 0, over the columns that are not constant; 0 without any."""
    moves_KN = np.diff(path_KN, axis=0) != 0
    kept_KN = moves_KN[:, moves_KN.any(axis=0)]
    return float(kept_KN.mean()) if kept_KN.size else 0.0


def chance_band(
    walks_KN: Array,
    steps: Sequence[int],
    *,
    directions: float,
    observed: float,
    threshold: float,
    view: View,
    seed: int,
) -> dict[str, Any]:
    """Return where the share above ``threshold`` lies for walks that share ``directions`` independent directions.

    Each replicate is one imagined run: its weights are Gaussian mixtures of that many walks, seen through ``view``. More than
    ``MOST_DIRECTIONS`` are taken as that many, which only makes the band wider. Up to 64 directions are simulated; from there
    on the spread over runs falls as one over the root of their number. ``low`` and ``high`` hold 90 % of the replicates;
    ``p_value`` is the share of replicates (the observed run counted in) at or above the observed share.
    """
    rng = np.random.default_rng(stream_seed(seed, "linearity", "null", "band"))
    count = max(1, round(min(directions, MOST_DIRECTIONS)))
    simulated = min(count, _SIMULATED_DIRECTIONS)
    # How weights mix the directions may be the same in every imagined run; how the directions walk is what differs.
    mixture_RN = rng.standard_normal((simulated, _BAND_WALKS)) / np.sqrt(simulated)
    mixture_PRC = np.stack(np.split(mixture_RN, _BAND_WALKS // _BAND_COLUMNS, axis=1))
    shares = np.empty(_BAND_REPLICATES)
    for replicate in range(_BAND_REPLICATES):
        basis_KR = walks_KN[:, rng.integers(walks_KN.shape[1], size=simulated)]
        mixed_KN = np.concatenate(list(basis_KR @ mixture_PRC), axis=1)
        fits = fit_lines(view(mixed_KN), steps)
        shares[replicate] = np.count_nonzero(fits.r2_N > threshold) / max(1, int(fits.changed_N.sum()))
    shares = shares.mean() + (shares - shares.mean()) * np.sqrt(simulated / count)
    low, high = np.quantile(shares, [0.05, 0.95])
    return {
        "directions": count,
        "at_least": directions > MOST_DIRECTIONS,
        "low": float(low),
        "high": float(high),
        "p_value": (1 + int((shares >= observed).sum())) / (1 + _BAND_REPLICATES),
        "replicates": _BAND_REPLICATES,
    }


def _paths(increments_KN: Array) -> Array:
    paths_KN: Array = np.concatenate([np.zeros((1, increments_KN.shape[1])), np.cumsum(increments_KN, axis=0)])
    return paths_KN


def _matching_scale(share: Callable[[float], float], target: float, spacing: float) -> float:
    """Bisect the step size, between a thousandth of a spacing and a thousand; the share grows with it."""
    low, high = np.log(spacing) - np.log(1e3), np.log(spacing) + np.log(1e3)
    for _ in range(24):
        middle = (low + high) / 2
        if share(float(np.exp(middle))) < target:
            low = middle
        else:
            high = middle
    return float(np.exp((low + high) / 2))


def _spacing(values_N: Array, dtype: str) -> Array:
    """Distance to the next number of the format, for normal numbers."""
    bits, smallest = (7, -126) if dtype == "BF16" else (10, -14)
    exponent_N = np.frexp(values_N)[1] - 1
    spacing_N: Array = np.exp2(np.maximum(exponent_N, smallest) - float(bits))
    return spacing_N


def _rounded(values: Array, dtype: str) -> Array:
    """Round to the nearest number of the format, ties to even."""
    if dtype == "F16":
        return values.astype(np.float16).astype(np.float64)
    bits = values.astype(np.float32).view(np.uint32)
    bits = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
    rounded: Array = bits.view(np.float32).astype(np.float64)
    return rounded
