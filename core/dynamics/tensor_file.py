"""Reading a safetensors file in pieces of any size: each byte once, memory bounded by the piece, hashed on the way.

The format (8 bytes of header length, a JSON header, the tensors' bytes) is read directly: the library slices rows of one
tensor, but a row of stacked experts alone can exceed the memory bound, and its memory maps count as memory of the process.
What tensors mean is `trajectory`'s part.
"""

import hashlib
import json
import math
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Floats = NDArray[np.floating[Any]]

ITEM_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
_NOT_WEIGHTS = {"BOOL", "U8", "I8", "U16", "I16", "U32", "I32", "U64", "I64"}
_HEADER_LIMIT = 100_000_000
_GAP_BYTES = 1 << 20


class TrajectoryError(ValueError):
    """The checkpoints cannot be analysed. ``code`` is stable; the message names the file and says what is wrong."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class Entry:
    """One tensor of a file: ``start`` and ``stop`` are byte offsets from the beginning of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int

    @property
    def elements(self) -> int:
        """Number of elements; 1 for a scalar."""
        return math.prod(self.shape)

    @property
    def is_weight(self) -> bool:
        """Whether it holds floating-point numbers; counters and masks are not weights."""
        return self.dtype not in _NOT_WEIGHTS


class TensorFile:
    """An open safetensors file.

    ``label`` is how messages name it. With ``sha256`` given, everything read in file order is hashed on the way and
    :meth:`finish` compares; the parts nobody asked for are read then. One thread reads so; any others may
    :meth:`read_again_into` meanwhile, since every read names its own place and none moves the file's.
    """

    def __init__(self, path: Path, label: str, *, sha256: str | None = None) -> None:
        self.label = label
        self._expected = sha256
        self._digest = hashlib.sha256()
        self._hashed = 0
        self._told = 0
        try:
            # Unbuffered: pieces are large, and a buffer would be one more copy.
            self._file = path.open("rb", buffering=0)
        except OSError as problem:
            raise TrajectoryError("missing_file", f"{label} cannot be read: {problem.strerror}") from problem
        try:
            self._size = path.stat().st_size
            self.entries = self._read_header()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> "TensorFile":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; doing so twice changes nothing."""
        self._file.close()

    def read_into(self, entry: Entry, first: int, out_N: Floats) -> None:
        """Fill ``out_N`` (contiguous) with the elements of ``entry`` from flat index ``first`` on.

        Exact, unless ``out_N`` is float32 and the file float64. Elements stored as ``out_N`` is are read straight into it.
        """
        item = ITEM_BYTES[entry.dtype]
        at = entry.start + first * item
        self._hash_until(at)
        raw = self._decode_into(entry, at, out_N)
        if self._expected is not None and at == self._hashed:
            self._digest.update(raw)
            self._hashed += len(out_N) * item

    def read_again_into(self, entry: Entry, first: int, out_N: Floats) -> None:
        """Do what :meth:`read_into` does without hashing, from any thread."""
        self._decode_into(entry, entry.start + first * ITEM_BYTES[entry.dtype], out_N)

    def will_need(self, entry: Entry, first: int, count: int) -> None:
        """Tell the kernel that ``count`` elements from ``first`` on are read next, so that it reads while others compute.

        They may go on beyond the tensor, and what it was told before is not said again.
        """
        item = ITEM_BYTES[entry.dtype]
        start = max(self._told, entry.start + first * item)
        self._told = max(start, min(self._size, entry.start + (first + count) * item))
        if self._told > start and hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._file.fileno(), start, self._told - start, os.POSIX_FADV_WILLNEED)

    def finish(self) -> None:
        """Hash what was not read and compare; raises :class:`TrajectoryError` when the file differs from its manifest."""
        if self._expected is None:
            return
        self._hash_until(self._size)
        if self._digest.hexdigest() != self._expected:
            raise damaged(self.label, "its SHA-256 differs from the manifest")

    def _hash_until(self, position: int) -> None:
        while self._expected is not None and self._hashed < position:
            self._bytes(self._hashed, min(_GAP_BYTES, position - self._hashed))

    def _bytes(self, at: int, count: int) -> bytearray:
        """Read a part that is no tensor's; hashed when it is the next."""
        data = bytearray(count)
        self._fill(at, memoryview(data))
        if self._expected is not None and at == self._hashed:
            self._digest.update(data)
            self._hashed += count
        return data

    def _decode_into(self, entry: Entry, at: int, out_N: Floats) -> memoryview:
        """Fill ``out_N`` from byte ``at`` on and return the bytes read; they may be ``out_N``'s own."""
        if (entry.dtype, out_N.dtype.itemsize) in (("F32", 4), ("F64", 8)) and sys.byteorder == "little":
            raw = out_N.data.cast("B")
            self._fill(at, raw)
            return raw
        raw = np.empty(len(out_N) * ITEM_BYTES[entry.dtype], dtype=np.uint8).data
        self._fill(at, raw)
        out_N[:] = _decoded(raw, entry.dtype)
        return raw

    def _fill(self, at: int, view: memoryview) -> None:
        done, count = 0, len(view)
        while done < count:
            got = os.preadv(self._file.fileno(), [view[done:]], at + done)
            if not got:
                raise damaged(self.label, f"it ends at byte {at + done}, before its last tensor does")
            done += got

    def _read_header(self) -> dict[str, Entry]:
        if self._size < 8:
            raise damaged(self.label, f"it has {self._size} bytes and no header")
        length = int.from_bytes(self._bytes(0, 8), "little")
        if length > min(_HEADER_LIMIT, self._size - 8):
            raise damaged(self.label, "its header is longer than the file")
        try:
            header = json.loads(bytes(self._bytes(8, length)))
            entries = [_entry(name, facts, 8 + length) for name, facts in header.items() if name != "__metadata__"]
        except (ValueError, KeyError, TypeError, AttributeError) as problem:
            raise damaged(self.label, "its header is not a safetensors header") from problem
        self._check(entries)
        return {entry.name: entry for entry in entries}

    def _check(self, entries: list[Entry]) -> None:
        for entry in entries:
            if entry.is_weight and entry.dtype not in ITEM_BYTES:
                raise TrajectoryError(
                    "unsupported_dtype",
                    f"{self.label}: tensor {entry.name} is stored as {entry.dtype}; weights must be one of "
                    f"{', '.join(ITEM_BYTES)}",
                )
            if entry.is_weight and entry.stop - entry.start != entry.elements * ITEM_BYTES[entry.dtype]:
                raise damaged(self.label, f"tensor {entry.name} has a size that does not fit its shape")
        end = max((entry.stop for entry in entries), default=0)
        if entries and end != self._size:
            raise damaged(self.label, f"it has {self._size} bytes where its header needs {end}")


def damaged(label: str, why: str) -> TrajectoryError:
    """Return the error for a file that is there but not whole."""
    return TrajectoryError("damaged_checkpoint", f"{label} is damaged: {why}; restore it or leave this checkpoint out")


def _entry(name: str, facts: Any, base: int) -> Entry:
    start, stop = (int(offset) for offset in facts["data_offsets"])
    shape = tuple(int(size) for size in facts["shape"])
    if not 0 <= start <= stop or any(size < 0 for size in shape):
        raise ValueError(name)
    return Entry(name, str(facts["dtype"]), shape, base + start, base + stop)


def _decoded(data: memoryview, dtype: str) -> NDArray[Any]:
    match dtype:
        case "BF16":
            # bfloat16 is the upper half of a float32.
            return (np.frombuffer(data, dtype="<u2").astype("<u4") << np.uint32(16)).view("<f4")
        case "F16":
            return np.frombuffer(data, dtype="<f2")
        case "F64":
            return np.frombuffer(data, dtype="<f8")
        case _:
            return np.frombuffer(data, dtype="<f4")
