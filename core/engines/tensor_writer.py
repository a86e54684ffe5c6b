"""Writing a safetensors file one tensor at a time, so that no more than one of them is ever in memory.

The format is written directly (8 bytes of header length, a JSON header, the tensors' bytes): the library wants every tensor at
once. What else belongs to a model folder is the caller's.
"""

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor

Progress = Callable[[int, int], None]

_NAMES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}


def no_progress(done: int, total: int) -> None:
    """Tell nobody."""


def write_safetensors(
    path: Path,
    weights: Mapping[str, Tensor],
    shapes: Mapping[str, tuple[int, ...]],
    dtype: torch.dtype,
    on_tensor: Progress,
) -> None:
    """Write ``weights`` in ``dtype``, in order of their names."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    names, at = sorted(weights), 0
    for name in names:
        size = math.prod(shapes[name]) * dtype.itemsize
        header[name] = {"dtype": _NAMES[dtype], "shape": list(shapes[name]), "data_offsets": [at, at + size]}
        at += size
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    with path.open("wb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        for done, name in enumerate(names, 1):
            file.write(_bytes(weights[name], dtype))
            on_tensor(done, len(names))


def _bytes(tensor: Tensor, dtype: torch.dtype) -> memoryview:
    flat = tensor.detach().to("cpu", dtype).contiguous().reshape(-1)
    view: memoryview = flat.view(torch.uint8).numpy().data
    return view
