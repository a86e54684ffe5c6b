"""Seeded samples of elements by position: one in each of n equal stretches, found without walking over the others.

Positions depend on the seed and the order of elements alone, never on how reading is cut into chunks.
"""

import numpy as np
from numpy.typing import NDArray


def sampled_positions(first: int, stop: int, *, total: int, n: int, seed: int) -> NDArray[np.int64]:
    """Return the sampled positions in [first, stop), increasing, of the ``n`` that are drawn from [0, total).

    Stretch j is [j total // n, (j + 1) total // n); one position is drawn from each, so all are distinct. ``n`` at or above
    ``total`` takes every position.
    """
    if n >= total:
        return np.arange(first, stop, dtype=np.int64)
    low = first * n // total
    high = min(n, -(-stop * n // total) + 1)
    # Quotients of j total by n from Python's exact integers at the first stretch: the products would overflow.
    quotient, rest = divmod(low * total, n)
    edges_J = quotient + (rest + np.arange(high - low + 1, dtype=np.int64) * total) // n
    widths_J = np.diff(edges_J)
    uniform_J = _uniform(np.arange(low, high, dtype=np.uint64), seed)
    drawn_J = edges_J[:-1] + np.minimum((uniform_J * widths_J).astype(np.int64), widths_J - 1)
    inside_J: NDArray[np.int64] = drawn_J[(drawn_J >= first) & (drawn_J < stop)]
    return inside_J


def _uniform(counter_J: NDArray[np.uint64], seed: int) -> NDArray[np.float64]:
    """SplitMix64 (Steele, Lea and Flood 2014) of seed + counter, as numbers in [0, 1)."""
    with np.errstate(over="ignore"):
        z_J = np.uint64(seed & (2**64 - 1)) + (counter_J + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        z_J = (z_J ^ (z_J >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z_J = (z_J ^ (z_J >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z_J ^= z_J >> np.uint64(31)
    return (z_J >> np.uint64(11)).astype(np.float64) * 2.0**-53
