"""A trajectory: the checkpoint folders of one training, in order, read together piece by piece.

Folders are Hugging Face folders (one safetensors file or shards), with or without a manifest of hashes. Everything is checked
before the first number is used, except what only reading can show (hashes, numbers that are not finite), and is refused by the
name of the file. What is measured on a trajectory is not decided here.
"""

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from core.dynamics.tensor_file import Array, Entry, TensorFile, TrajectoryError, damaged

MINIMUM = 4
CHUNK_BYTES = 2 << 20  # small enough to stay in a processor's cache while it is worked on
_WEIGHTS = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_MANIFEST = "manifest.json"
_EMBEDDING = "embed_tokens.weight"
_HEAD = "lm_head.weight"


@dataclass(frozen=True)
class Point:
    """A checkpoint folder and its training step.

    ``jump`` marks weights that replaced the previous point's at the same step without training, as re-grounding does; the
    difference between the two is taken out of the path.
    """

    step: int
    folder: Path
    jump: bool = False


@dataclass(frozen=True)
class Chunk:
    """Consecutive elements of one tensor along the whole trajectory; valid until the next chunk is asked for.

    ``path_KN`` is y_k - y_0 with jumps taken out, ``initial_N`` is y_0, both float64 and exact up to one rounding. ``first`` is
    the flat index of the first element in its tensor; ``last`` says that the tensor ends here.
    """

    tensor: Entry
    first: int
    initial_N: Array
    path_KN: Array

    @property
    def last(self) -> bool:
        """Whether this is the tensor's last chunk."""
        return bool(self.first + self.path_KN.shape[1] == self.tensor.elements)


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

    def chunks(self, max_bytes: int = CHUNK_BYTES) -> Iterator[Chunk]:
        """Read everything once, tensor by tensor; ``max_bytes`` bounds ``path_KN``.

        After the last chunk every file is compared with its manifest's hash, so a caller that gets through the whole
        iteration has read undamaged files. Raises :class:`TrajectoryError` there, and at numbers that are not finite.
        """
        width = max(1, max_bytes // (8 * len(self.steps)))
        for tensor in self.tensors:
            for first in range(0, tensor.elements, width):
                yield self._chunk(tensor, first, min(width, tensor.elements - first))
        for folder in self._folders:
            folder.finish()

    def _chunk(self, tensor: Entry, first: int, count: int) -> Chunk:
        path_KN = np.empty((len(self.steps), count))
        initial_N, before_N, taken_out_N = np.empty(count), np.empty(count), np.zeros(count)
        row, jumps = 0, any(point.jump for point in self.points)
        for point, folder in zip(self.points, self._folders, strict=True):
            values_N = before_N if point.jump else path_KN[row]
            if point.jump:
                # The path goes on from where it was: what the jump added is subtracted from here on.
                values_N = np.empty(count)
            folder.read_into(tensor.name, first, values_N)
            if row == 0:
                initial_N[:] = values_N
            values_N -= initial_N
            if point.jump:
                taken_out_N += values_N - before_N
            elif jumps:
                before_N[:] = values_N
                values_N -= taken_out_N
            row += not point.jump
        return Chunk(tensor, first, initial_N, path_KN)


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

    def read_into(self, name: str, first: int, out_N: Array) -> None:
        file = self._files[self._place[name]]
        file.read_into(self.weights[name], first, out_N)
        if not math.isfinite(float(out_N.sum())):
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
