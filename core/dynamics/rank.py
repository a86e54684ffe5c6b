"""How much of a matrix' change lies in one direction: the leading singular value's share of the squared norm.

Block power iteration from a seeded start, over blocks of rows, so that a matrix that does not fit the memory bound is read
again in every round instead of held. A round whose share is within 2e-4 of the one before is the last: with a gap after the
first singular value the share is exact to that; without one it is a lower bound that is close.
"""

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from core.streams import stream_seed

_BLOCK = 4
_ROUNDS = 8
_CLOSE = 2e-4

Rows = Callable[[], Iterable[NDArray[np.float32]]]


def leading_share(change_RC: NDArray[np.float32], seed: int) -> float | None:
    """Return sigma_1^2 / sum of sigma^2 of ``change_RC``, in [0, 1]; None when nothing changed."""
    return streamed_leading_share(lambda: (change_RC,), change_RC.shape[0], change_RC.shape[1], seed)


def streamed_leading_share(rows: Rows, height: int, width: int, seed: int) -> float | None:
    """Return what :func:`leading_share` does for a matrix that ``rows()`` gives anew, in blocks of rows, every round."""
    scale = _scale(rows)
    if scale is None:
        return None
    rng = np.random.default_rng(stream_seed(seed, "linearity", "rank"))
    block = min(_BLOCK, height, width)
    basis_CB = np.linalg.qr(rng.standard_normal((width, block)))[0].astype(np.float32)
    share = 0.0
    total = 0.0
    for round_ in range(_ROUNDS):
        image_CB = np.zeros((width, block), dtype=np.float32)
        for part_RC in rows():
            scaled_RC = part_RC * scale
            if round_ == 0:
                total += float(np.einsum("rc,rc->", scaled_RC, scaled_RC, dtype=np.float64))
            image_CB += scaled_RC.T @ (scaled_RC @ basis_CB)
        # Rayleigh-Ritz: the leading eigenvalue of the Gram matrix seen from the basis.
        leading = float(np.linalg.eigvalsh((basis_CB.T @ image_CB).astype(np.float64))[-1])
        before, share = share, min(1.0, leading / total)
        if share - before < _CLOSE:
            break
        basis_CB = np.linalg.qr(image_CB)[0]
    return share


def _scale(rows: Rows) -> np.float32 | None:
    """One over the largest change: changes of 1e-23 and less would vanish when squared in float32. None when all are 0."""
    largest = max((float(np.abs(part_RC).max(initial=0.0)) for part_RC in rows()), default=0.0)
    return np.float32(1.0 / largest) if largest else None
