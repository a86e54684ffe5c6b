"""A trajectory: the checkpoint folders of one training, in order, read together piece by piece.

Folders are Hugging Face folders (one safetensors file or shards), with or without a manifest of hashes. Everything is checked
before the first number is used, except what only reading can show (hashes, numbers that are not finite), and is refused by the
name of the file. What is measured on a trajectory is not decided here.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from core.dynamics.tensor_file import Entry, Floats, TensorFile, TrajectoryError, damaged

MINIMUM = 4
CHUNK_BYTES = 8 << 20
_MOST_FLOAT32_POINTS = 64
_CHUNKS_AHEAD = 4  # what the kernel is told of in advance: files in turns defeat its own guess
_WEIGHTS = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_MANIFEST = "manifest.json"
_EMBEDDING = "embed_tokens.weight"
_HEAD = "lm_head.weight"


@dataclass(frozen=True)
class Jumped:
    """A folder holds W_s + beta (W_e - W_s), with W_s of ``from_step``; tensors for whose names ``spared`` is true hold W_e."""

    from_step: int
    beta: float
    spared: Callable[[str], bool] = lambda name: False


@dataclass(frozen=True)
class Point:
    """A checkpoint folder and its training step.

    ``jump`` marks weights that replaced the previous point's at the same step without training, as re-grounding does; the
    difference between the two is taken out of the path. ``jumped`` says that the folder holds the weights after a jump only:
    those before it lie on the line from the checkpoint of another step, and :meth:`Trajectory.open` puts them in.
    """

    step: int
    folder: Path
    jump: bool = False
    jumped: "Jumped | None" = None


@dataclass(frozen=True)
class Chunk:
    """Consecutive elements of one tensor as the files hold them: ``values_PN``, one row per point, jumps included.

    ``first`` is the flat index of the first element in its tensor. ``values_PN`` is a buffer that is used again, see
    :meth:`Trajectory.chunks`.
    """

    tensor: Entry
    first: int
    values_PN: Floats

    @property
    def elements(self) -> int:
        """Number of elements."""
        return int(self.values_PN.shape[1])

    @property
    def last(self) -> bool:
        """Whether this is the tensor's last chunk."""
        return self.first + self.elements == self.tensor.elements


class Trajectory:
    """Open checkpoint folders whose tensors agree in name, shape and dtype. Use it as a context manager.

    Attributes:
        steps: training steps of the path's K points, increasing; jumps add none.
        tensors: what is read, in the order of the first folder's files, a tied head counted once.
        tied: names left out because they repeat the input embedding.
        not_weights: names of stored tensors that are no floating-point numbers.
    """

    def __init__(self, points: Sequence[Point], folders: Sequence["_Folder"]) -> None:
        self.points = tuple(points)
        self.steps = tuple(point.step for point in points if not point.jump)
        self.tied = folders[0].tied
        self.not_weights = folders[0].not_weights
        self.tensors = tuple(folders[0].weights.values())
        self._folders = folders

    @classmethod
    def open(cls, points: Sequence[Point]) -> "Trajectory":
        """Open and check the folders; raises :class:`TrajectoryError` naming the first thing that is wrong."""
        points = _with_ends_of_cycles(points)
        _check_steps(points)
        with ExitStack() as stack:
            folders = [stack.enter_context(_Folder(point)) for point in points]
            for folder in folders[1:]:
                _check_same(folders[0], folder)
            stack.pop_all()
        return cls(points, folders)

    def __enter__(self) -> "Trajectory":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for folder in self._folders:
            folder.close()

    @property
    def elements(self) -> int:
        """Number of weights, each counted once."""
        return sum(tensor.elements for tensor in self.tensors)

    @property
    def dtypes(self) -> dict[str, int]:
        """Number of weights per stored dtype."""
        counts: dict[str, int] = {}
        for tensor in self.tensors:
            counts[tensor.dtype] = counts.get(tensor.dtype, 0) + tensor.elements
        return counts

    def chunks(self, max_bytes: int = CHUNK_BYTES, *, buffers: int = 1) -> Iterator[Chunk]:
        """Read everything once, tensor by tensor; ``max_bytes`` bounds a chunk.

        A chunk is valid until the ``buffers``-th after it is asked for. After the last chunk every file is compared with its
        manifest's hash, so a caller that gets through the whole iteration has read undamaged files. Raises
        :class:`TrajectoryError` there.
        """
        rows = len(self.points)
        pool = [np.empty(max(rows, max_bytes // 8)) for _ in range(buffers)]
        turn = 0
        for tensor in self.tensors:
            dtype = self._dtype(tensor)
            width = max(1, max_bytes // (rows * np.dtype(dtype).itemsize))
            for first in range(0, tensor.elements, width):
                count = min(width, tensor.elements - first)
                buffer: Floats = pool[turn % buffers].view(dtype)
                turn += 1
                yield self._chunk(tensor, first, buffer[: rows * count].reshape(rows, count))
        for folder in self._folders:
            folder.finish()

    def path_of(self, chunk: Chunk, part: slice = slice(None)) -> tuple[Floats, Floats]:
        """Return y_0 as ``initial_N`` and y_k - y_0 for k >= 1, jumps taken out, as ``path_JN``, of a part of a chunk.

        Each is exact up to one rounding of its dtype; the chunk stays as it is. A number that is not finite makes the path
        so too, or overflows it: :meth:`check_finite` finds which.
        """
        values_PN = chunk.values_PN[:, part]
        initial_N = values_PN[0]
        if self.points == self.path:
            return initial_N, values_PN[1:] - initial_N
        taken_out_N, kept = np.zeros_like(initial_N), []
        for row, point in enumerate(self.points[1:], start=1):
            if point.jump:
                # The path goes on from where it was: what the jump added is subtracted from here on.
                taken_out_N += values_PN[row] - values_PN[row - 1]
            else:
                kept.append(values_PN[row] - initial_N - taken_out_N)
        return initial_N, np.stack(kept)

    @property
    def path(self) -> tuple[Point, ...]:
        """The points without jumps."""
        return tuple(point for point in self.points if not point.jump)

    def _dtype(self, tensor: Entry) -> type[np.float32] | type[np.float64]:
        """The working dtype: float32 differences of float32 weights are exact or nearly so, and half the memory.

        Sums over many points, and what is subtracted at jumps, would lose digits.
        """
        wide = tensor.dtype == "F64" or len(self.points) > _MOST_FLOAT32_POINTS or self.points != self.path
        return np.float64 if wide else np.float32

    def read(self, tensor: Entry, row: int, first: int, out_N: Floats) -> None:
        """Read a part of one point's tensor again, from any thread, while chunks are read; not hashed."""
        self._folders[row].read_again_into(tensor.name, first, out_N)

    def check_finite(self, chunk: Chunk) -> None:
        """Raise :class:`TrajectoryError` naming the file of a number that is not finite."""
        with np.errstate(over="ignore", invalid="ignore"):
            sums_P = chunk.values_PN.sum(axis=1)
        for row in np.flatnonzero(~np.isfinite(sums_P)):
            if not np.isfinite(chunk.values_PN[row]).all():
                self._folders[row].refuse_not_finite(chunk.tensor.name)

    def _chunk(self, tensor: Entry, first: int, values_PN: Floats) -> Chunk:
        for row, folder in enumerate(self._folders):
            folder.read_into(tensor.name, first, values_PN[row])
            jumped = self.points[row].jumped
            if jumped is not None and not jumped.spared(tensor.name):
                values_PN[row] += (1 / jumped.beta - 1) * (values_PN[row] - values_PN[self._row_of(jumped.from_step)])
            folder.will_need(tensor.name, first + values_PN.shape[1], _CHUNKS_AHEAD * values_PN.shape[1])
        return Chunk(tensor, first, values_PN)

    def _row_of(self, step: int) -> int:
        """The row of the weights with which training went on after ``step``."""
        return max(row for row, point in enumerate(self.points) if point.step == step)


def check_alike(points: Sequence[Point]) -> None:
    """Refuse folders that are not whole or whose tensors differ in name, shape or dtype, by their headers alone.

    Raises :class:`TrajectoryError` naming the file.
    """
    with ExitStack() as stack:
        folders = [stack.enter_context(_Folder(point)) for point in points]
        for folder in folders[1:]:
            _check_same(folders[0], folder)


class _Folder:
    """One point's files. ``weights`` maps names to entries in reading order."""

    def __init__(self, point: Point) -> None:
        self.point = point
        self._label = point.folder.name
        if not point.folder.is_dir():
            raise TrajectoryError(
                "missing_checkpoint", f"the checkpoint of step {point.step}, {self._label}, is missing"
            )
        self._manifest = self._read_manifest()
        self._files: dict[str, TensorFile] = {}
        names = self._file_names()
        with ExitStack() as stack:
            for name in names:
                self._files[name] = stack.enter_context(self._open(name))
            self._place = self._places(names)
            stack.pop_all()
        entries = {name: self._files[file].entries[name] for name, file in self._place.items()}
        self.not_weights = tuple(name for name, entry in entries.items() if not entry.is_weight)
        self.tied = self._tied_names(entries)
        left_out = {*self.not_weights, *self.tied}
        self.weights = {name: entry for name, entry in entries.items() if name not in left_out}

    def __enter__(self) -> "_Folder":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        for file in self._files.values():
            file.close()

    def label(self, name: str) -> str:
        """Name the file that holds tensor ``name``."""
        return f"{self._label}/{self._place[name]}" if name in self._place else self._label

    def read_into(self, name: str, first: int, out_N: Floats) -> None:
        self._files[self._place[name]].read_into(self.weights[name], first, out_N)

    def read_again_into(self, name: str, first: int, out_N: Floats) -> None:
        self._files[self._place[name]].read_again_into(self.weights[name], first, out_N)

    def will_need(self, name: str, first: int, count: int) -> None:
        self._files[self._place[name]].will_need(self.weights[name], first, count)

    def refuse_not_finite(self, name: str) -> None:
        raise TrajectoryError("not_finite", f"{self.label(name)}: tensor {name} holds a number that is not finite")

    def finish(self) -> None:
        for file in self._files.values():
            file.finish()

    def _open(self, name: str) -> TensorFile:
        path, facts = self.point.folder / name, self._manifest.get(name, {})
        if not path.is_file():
            raise TrajectoryError("missing_file", f"{self._label}/{name} is missing (step {self.point.step})")
        if facts and path.stat().st_size != facts["bytes"]:
            raise damaged(f"{self._label}/{name}", "its size differs from the manifest")
        return TensorFile(path, f"{self._label}/{name}", sha256=facts.get("sha256"))

    def _file_names(self) -> list[str]:
        if not (self.point.folder / _INDEX).is_file():
            return [_WEIGHTS]
        return sorted(set(self._weight_map().values()))

    def _places(self, files: Sequence[str]) -> dict[str, str]:
        """Map each tensor to its file, in file order."""
        found = {
            entry.name: file
            for file in files
            for entry in sorted(self._files[file].entries.values(), key=lambda entry: entry.start)
        }
        if (self.point.folder / _INDEX).is_file():
            for name, file in self._weight_map().items():
                if name not in self._files[file].entries:
                    raise damaged(f"{self._label}/{file}", f"the index places tensor {name} in it, but it is not there")
        return found

    def _weight_map(self) -> dict[str, str]:
        content = self._json(_INDEX).get("weight_map")
        if not isinstance(content, dict) or not content:
            raise damaged(f"{self._label}/{_INDEX}", "it has no weight_map")
        names = {str(name): str(file) for name, file in content.items()}
        for file in names.values():
            if Path(file).name != file:
                raise damaged(f"{self._label}/{_INDEX}", f"it names the file {file!r} outside the folder")
        return names

    def _read_manifest(self) -> dict[str, Any]:
        """Return {file: {bytes, sha256}}; empty for a folder that has no manifest."""
        if not (self.point.folder / _MANIFEST).is_file():
            return {}
        manifest = self._json(_MANIFEST)
        step, files = manifest.get("step"), manifest.get("files")
        if not isinstance(files, dict):
            raise damaged(f"{self._label}/{_MANIFEST}", "it lists no files")
        if step != self.point.step:
            raise TrajectoryError(
                "wrong_step",
                f"{self._label}/{_MANIFEST} says step {step}, but the folder was given as {self.point.step}",
            )
        return files

    def _json(self, name: str) -> dict[str, Any]:
        try:
            content = json.loads((self.point.folder / name).read_text(encoding="utf-8"))
        except ValueError as problem:
            raise damaged(f"{self._label}/{name}", "it is not JSON") from problem
        if not isinstance(content, dict):
            raise damaged(f"{self._label}/{name}", "it is not a JSON object")
        return content

    def _tied_names(self, entries: dict[str, Entry]) -> tuple[str, ...]:
        """A tied head stored beside its embedding is the same weights twice."""
        if not (self.point.folder / "config.json").is_file() or not self._json("config.json").get(
            "tie_word_embeddings"
        ):
            return ()
        embedded = {entry.shape for name, entry in entries.items() if name.endswith(_EMBEDDING)}
        return tuple(name for name, entry in entries.items() if name.endswith(_HEAD) and entry.shape in embedded)


def _with_ends_of_cycles(points: Sequence[Point]) -> list[Point]:
    """Put the weights before each jump in front of those after it."""
    found: list[Point] = []
    steps = {point.step for point in points}
    for point in points:
        if point.jumped is None:
            found.append(point)
            continue
        if point.jumped.from_step not in steps or point.jumped.from_step >= point.step:
            raise TrajectoryError(
                "missing_checkpoint",
                f"the weights of step {point.step} are those after a jump from step {point.jumped.from_step}, whose "
                "checkpoint is not there, so the jump cannot be taken out of the path; keep all checkpoints (save.keep all)",
            )
        found += [point, replace(point, jump=True, jumped=None)]
    return found


def _check_steps(points: Sequence[Point]) -> None:
    path = [point for point in points if not point.jump]
    if len(path) < MINIMUM:
        have = ", ".join(str(point.step) for point in path) or "none"
        raise TrajectoryError(
            "too_few_checkpoints",
            f"linearity needs at least {MINIMUM} checkpoints and there are {len(path)} (steps: {have}); "
            "train with a smaller save.every and save.keep all",
        )
    if points[0].jump:
        raise TrajectoryError("steps_not_increasing", f"{points[0].folder.name} is a jump, but nothing comes before it")
    for before, after in pairwise(points):
        if after.jump and after.step != before.step:
            raise TrajectoryError(
                "steps_not_increasing",
                f"{after.folder.name} is a jump at step {after.step}, but the checkpoint before it is of step {before.step}",
            )
        if not after.jump and after.step <= before.step:
            raise TrajectoryError(
                "steps_not_increasing",
                f"steps must increase, but {after.folder.name} is of step {after.step} and the one before it, "
                f"{before.folder.name}, of step {before.step}",
            )


def _check_same(first: _Folder, other: _Folder) -> None:
    missing, extra = first.weights.keys() - other.weights.keys(), other.weights.keys() - first.weights.keys()
    if missing:
        name = min(missing)
        raise TrajectoryError(
            "different_tensors", f"{other.label(name)} has no tensor {name}, which {first.label(name)} has"
        )
    if extra:
        name = min(extra)
        raise TrajectoryError(
            "different_tensors", f"{other.label(name)} has a tensor {name}, which {first.label(name)} has not"
        )
    for name, entry in first.weights.items():
        found = other.weights[name]
        if (entry.shape, entry.dtype) != (found.shape, found.dtype):
            raise TrajectoryError(
                "different_tensors",
                f"{other.label(name)}: tensor {name} is {found.dtype} {list(found.shape)}, "
                f"but in {first.label(name)} it is {entry.dtype} {list(entry.shape)}",
            )
