"""The one pass over a trajectory's files: read in order by one thread, added up by another, merged in the order of reading.

The result is the same however the threads take turns, since every chunk is added up by itself. What is made of the sums is
`linearity`'s part.
"""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from core.dynamics.modules import Place, places
from core.dynamics.rank import streamed_leading_share
from core.dynamics.regression import R2Histogram, fit_paths
from core.dynamics.relative import RelativeChange
from core.dynamics.sampling import sampled_positions
from core.dynamics.tensor_file import Array, Entry, Floats
from core.dynamics.trajectory import Chunk, Trajectory
from core.streams import stream_seed

_WITNESSES = 4096
_CHUNK_BYTES = 6 << 20
_PIECE_ELEMENTS = 16384  # what is worked on at a time: it and its increments stay in a processor's cache
_DOT_ELEMENTS = 8192  # at a time: longer dot products, too, are divided among threads by BLAS
_ROWS_BYTES = 256 << 10  # of a matrix, multiplied at a time: so little that BLAS starts no threads beside ours
_HELD_ELEMENTS = 2 << 20  # the change of a larger matrix would not fit the memory bound
_WORKERS = 1  # beside the thread that reads: a second one waits for the interpreter's lock more than it adds up

OnTensor = Callable[[int, int], None]


@dataclass
class Witnesses:
    """A small seeded sample of whole trajectories: examples to look at, and what rounding does to increments."""

    names: list[str] = field(default_factory=list)
    index: list[int] = field(default_factory=list)
    initial: list[float] = field(default_factory=list)
    paths: list[Array] = field(default_factory=list)

    def changed(self) -> list[int]:
        """Positions in the lists of those that are not constant."""
        return [at for at, path in enumerate(self.paths) if path.any()]

    def add(self, name: str, index_W: NDArray[np.int64], initial_W: Floats, path_JW: Floats) -> None:
        """Append weights of tensor ``name``."""
        self.names += [name] * len(index_W)
        self.index += index_W.tolist()
        self.initial += initial_W.tolist()
        self.paths += [np.concatenate([np.zeros(1), path_J]) for path_J in path_JW.T.astype(np.float64)]

    def extend(self, other: "Witnesses") -> None:
        """Append those of another."""
        self.names += other.names
        self.index += other.index
        self.initial += other.initial
        self.paths += other.paths


@dataclass
class Sums:
    """What one pass leaves: per-tensor documents, histograms per cell of the heat map, the Gram matrix, and samples.

    ``gram_KK`` holds the inner products of w_k - w_0 over all weights.
    """

    overall: R2Histogram
    cells: dict[Place, R2Histogram]
    tensors: list[dict[str, Any]]
    gram_KK: Array
    relative: RelativeChange
    witnesses: Witnesses
    net_changed: int = 0
    drifting: int = 0

    @classmethod
    def empty(cls, threshold: float, count: int) -> "Sums":
        """Sums of nothing for ``count`` checkpoints."""
        return cls(R2Histogram(threshold), {}, [], np.zeros((count, count)), RelativeChange(threshold), Witnesses())

    def add(self, part: "Sums") -> None:
        """Add a chunk's sums (which have no cells and no documents)."""
        self.overall.merge(part.overall)
        self.gram_KK += part.gram_KK
        self.relative.merge(part.relative)
        self.witnesses.extend(part.witnesses)
        self.net_changed += part.net_changed
        self.drifting += part.drifting


def collect(trajectory: Trajectory, *, seed: int, threshold: float, sample: int | None, on_tensor: OnTensor) -> Sums:
    """Read the trajectory once and add up what the result needs. Memory: a few chunks, and the sums."""
    count = len(trajectory.steps)
    where = places([tensor.name for tensor in trajectory.tensors])
    sums = Sums.empty(threshold, count)
    # One walk in twenty exceeds this t.
    pass_ = _Pass(
        trajectory, threshold, seed, sample, float(stats.t.ppf(0.975, count - 2)), _offsets(trajectory.tensors)
    )
    ranks: list[Future[float | None]] = []
    with ThreadPoolExecutor(_WORKERS) as pool:
        waiting: deque[tuple[Chunk, _Change, Future[Sums]]] = deque()
        current = R2Histogram(threshold)

        def merge_oldest() -> None:
            nonlocal current
            chunk, change, future = waiting.popleft()
            part = future.result()
            current.merge(part.overall)
            sums.add(part)
            if chunk.last:
                place = where[chunk.tensor.name]
                ranks.append(pool.submit(change.leading_share))
                sums.tensors.append(_document(chunk.tensor, place, current))
                sums.cells.setdefault(place, R2Histogram(threshold)).merge(current)
                current = R2Histogram(threshold)
                if len(ranks) > _WORKERS:
                    ranks[-_WORKERS - 1].result()  # so that few changes are held at a time
                on_tensor(len(sums.tensors), len(trajectory.tensors))

        try:
            change = _Change(trajectory, trajectory.tensors[0], seed) if trajectory.tensors else None
            for chunk in trajectory.chunks(_CHUNK_BYTES, buffers=_WORKERS + 2):
                if change is None or chunk.first == 0:
                    change = _Change(trajectory, chunk.tensor, seed)
                waiting.append((chunk, change, pool.submit(pass_.sums_of, chunk, change)))
                if len(waiting) > _WORKERS:
                    merge_oldest()
            while waiting:
                merge_oldest()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    for document, rank in zip(sums.tensors, ranks, strict=True):
        document["rank_1_share"] = rank.result()
    return sums


class _Change:
    """A tensor's change from the first point to the last, held where it is small enough and read again where not."""

    def __init__(self, trajectory: Trajectory, tensor: Entry, seed: int) -> None:
        self._trajectory = trajectory
        self._tensor = tensor
        self._seed = seed
        self._matrices = _matrices(tensor.shape)
        held = self._matrices is not None and tensor.elements <= _HELD_ELEMENTS
        self.held_N = np.empty(tensor.elements, dtype=np.float32) if held else None

    def leading_share(self) -> float | None:
        """Return the share of the leading direction; of stacked matrices (experts), the mean over those that changed.

        A re-read change is the plain difference of the last and first files: jumps are part of it.
        """
        if self._matrices is None:
            return None
        count, height, width = self._matrices
        shares = [self._share(number, height, width) for number in range(count)]
        self.held_N = None
        found = [share for share in shares if share is not None]
        return sum(found) / len(found) if found else None

    def _share(self, number: int, height: int, width: int) -> float | None:
        size = height * width
        if self.held_N is not None:
            matrix = self.held_N[number * size : (number + 1) * size].reshape(height, width)
            rows = _rows_at_a_time(width)
            parts = [matrix[row : row + rows] for row in range(0, height, rows)]
            return streamed_leading_share(lambda: parts, height, width, self._seed)
        return streamed_leading_share(lambda: self._read(number * size, height, width), height, width, self._seed)

    def _read(self, start: int, height: int, width: int) -> Any:
        rows = _rows_at_a_time(width)
        first_N, last_N = (np.empty(rows * width, dtype=np.float32) for _ in range(2))
        for row in range(0, height, rows):
            count = min(rows, height - row) * width
            at = start + row * width
            self._trajectory.read(self._tensor, 0, at, first_N[:count])
            self._trajectory.read(self._tensor, -1, at, last_N[:count])
            yield np.subtract(last_N[:count], first_N[:count], out=last_N[:count]).reshape(-1, width)


def _rows_at_a_time(width: int) -> int:
    return max(1, _ROWS_BYTES // (4 * width))


def _matrices(shape: tuple[int, ...]) -> tuple[int, int, int] | None:
    """(how many, height, width) of a matrix or a stack of matrices; None for what has no rank above 1."""
    if len(shape) not in (2, 3) or min(shape[-2:]) < 2:
        return None
    return (shape[0] if len(shape) == 3 else 1, shape[-2], shape[-1])


@dataclass(frozen=True)
class _Pass:
    """The fixed facts of a pass, and what it does with a chunk. ``critical_t`` is exceeded by one walk in twenty."""

    trajectory: Trajectory
    threshold: float
    seed: int
    sample: int | None
    critical_t: float
    offsets: dict[str, int]

    def sums_of(self, chunk: Chunk, change: _Change) -> Sums:
        """Add up one chunk, a piece at a time."""
        sums = Sums.empty(self.threshold, len(self.trajectory.steps))
        start = self.offsets[chunk.tensor.name] + chunk.first
        stop = start + chunk.elements
        witnesses = self._drawn(start, stop, _WITNESSES, "witnesses") - start
        sampled = None if self.sample is None else self._drawn(start, stop, self.sample, "sample") - start
        if sampled is not None:
            self.trajectory.check_finite(chunk)  # what the sample leaves out is in no sum
        for at in range(0, chunk.elements, _PIECE_ELEMENTS):
            end = min(at + _PIECE_ELEMENTS, chunk.elements)
            initial_N, path_JN = self.trajectory.path_of(chunk, slice(at, end))
            if change.held_N is not None:
                change.held_N[chunk.first + at : chunk.first + end] = path_JN[-1]
            drawn = _within(witnesses, at, end)
            sums.witnesses.add(chunk.tensor.name, chunk.first + at + drawn, initial_N[drawn], path_JN[:, drawn])
            if sampled is not None:
                columns = _within(sampled, at, end)
                initial_N, path_JN = initial_N[columns], path_JN[:, columns]
            _add_gram(sums.gram_KK, path_JN)
            if not np.isfinite(sums.gram_KK.diagonal()).all():
                # A number that is not finite makes its square so too; so does one that is merely large.
                self.trajectory.check_finite(chunk)
            self._add(initial_N, path_JN, sums)
        return sums

    def _add(self, initial_N: Floats, path_JN: Floats, sums: Sums) -> None:
        fits = fit_paths(path_JN, self.trajectory.steps)
        sums.overall.add(fits.r2_N, fits.changed_N)
        sums.net_changed += int(np.count_nonzero(fits.net_N != 0))
        sums.drifting += fits.drifting(self.critical_t)
        sums.relative.add(initial_N, fits)

    def _drawn(self, start: int, stop: int, n: int, name: str) -> NDArray[np.int64]:
        seed = stream_seed(self.seed, "linearity", name)
        return sampled_positions(start, stop, total=self.trajectory.elements, n=n, seed=seed)


def _within(positions_S: NDArray[np.int64], at: int, end: int) -> NDArray[np.int64]:
    """Return those of the increasing positions that lie in [at, end), counted from ``at``."""
    low, high = np.searchsorted(positions_S, (at, end))
    return positions_S[low:high] - at


def _add_gram(gram_KK: Array, path_JN: Floats) -> None:
    """Add the inner products of the paths.

    Dot by dot: matrix products of so few rows are slow in BLAS and, like those with a vector, are divided among threads of its
    own, which is slower still beside ours and rounds differently.
    """
    count = len(path_JN)
    upper_JJ = np.zeros((count, count), dtype=path_JN.dtype)
    for at in range(0, path_JN.shape[1], _DOT_ELEMENTS):
        part_JN = path_JN[:, at : at + _DOT_ELEMENTS]
        for row in range(count):
            with np.errstate(over="ignore", invalid="ignore"):
                np.vecdot(part_JN[row:], part_JN[row], out=upper_JJ[row, row:])
        gram_KK[1:, 1:] += upper_JJ
        gram_KK[1:, 1:] += np.triu(upper_JJ, 1).T


def _document(tensor: Entry, place: Place, r2: R2Histogram) -> dict[str, Any]:
    return {
        "name": tensor.name,
        "layer": place.layer,
        "module": place.module,
        "shape": list(tensor.shape),
        **r2.summary(),
        "rank_1_share": None,
    }


def _offsets(tensors: tuple[Entry, ...]) -> dict[str, int]:
    """Place all weights in one row, by name: a sample does not depend on how a folder orders or shards its files."""
    offsets, at = {}, 0
    for tensor in sorted(tensors, key=lambda tensor: tensor.name):
        offsets[tensor.name] = at
        at += tensor.elements
    return offsets
