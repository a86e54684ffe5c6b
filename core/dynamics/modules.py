"""From a tensor's name to its place in the model: layer and module type, or the Special column.

Names are those of Hugging Face folders. Only their shape is used (the first number is the layer), no list of architectures.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Place:
    """``layer`` is None for what belongs to no block (embedding, final norm, head). Experts of a layer share one module."""

    layer: int | None
    module: str


def places(names: Sequence[str]) -> dict[str, Place]:
    """Return each tensor's place; stacks of blocks with different stems (a text and a vision tower) stay apart."""
    split = {name: _split(name) for name in names}
    stems = {stem for stem, layer, _ in split.values() if layer is not None}
    return {name: _place(*parts, apart=len(stems) > 1) for name, parts in split.items()}


def _place(stem: str, layer: int | None, module: str, *, apart: bool) -> Place:
    return Place(layer, f"{stem}:{module}" if apart and layer is not None else module)


def _split(name: str) -> tuple[str, int | None, str]:
    parts = name.split(".")
    numbers = [index for index, part in enumerate(parts) if part.isdecimal()]
    if not numbers:
        return "", None, _module(parts[1:] if parts[0] in ("model", "transformer") and len(parts) > 1 else parts)
    at = numbers[0]
    return ".".join(parts[:at]), int(parts[at]), _module([part for part in parts[at + 1 :] if not part.isdecimal()])


def _module(parts: Sequence[str]) -> str:
    kept = parts[:-1] if parts and parts[-1] == "weight" else parts
    return ".".join(kept) or "weight"
