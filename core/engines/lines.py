"""Weights on a straight line through checkpoints, computed one tensor at a time and always in fp32.

A line is a mapping from a weight's name to its tensor: whoever loads, writes or measures it walks over it, and no more than
one tensor of each checkpoint is in memory. What the points are and what becomes of the result is the caller's.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from core.engines.models import ModelError, read_weights

Weights = Mapping[str, Tensor]

_PART = 1 << 24  # elements; 128 MiB in fp64
_NORM = re.compile(r"norm|(^|_)ln(_|$)")


def is_norm(name: str) -> bool:
    """Whether a weight belongs to a normalisation layer, by the name of the module that holds it."""
    module = name.rsplit(".", 2)[-2:]
    return len(module) == 2 and _NORM.search(module[0]) is not None


class FolderWeights(Weights):
    """The weights of a model folder, read when asked for; floating-point ones in fp32.

    Use as a context manager, or call :meth:`close`: the files stay open in between.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files = read_weights(folder)
        self._open: dict[Path, Any] = {}

    def __enter__(self) -> "FolderWeights":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the files; doing so twice changes nothing."""
        self._open.clear()

    def __getitem__(self, name: str) -> Tensor:
        tensor: Tensor = self._file(name).get_tensor(name)
        return tensor.float() if tensor.is_floating_point() else tensor

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of one weight, without reading it."""
        return tuple(self._file(name).get_slice(name).get_shape())

    def _file(self, name: str) -> Any:
        path = self._files[name]
        if path not in self._open:
            self._open[path] = safe_open(str(path), framework="pt")
        return self._open[path]

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


class NamedOnly(Weights):
    """Some of the weights, by name: a folder also holds buffers that no optimizer knows."""

    def __init__(self, weights: Weights, names: Iterable[str]) -> None:
        self._weights = weights
        self._names = tuple(names)

    def __getitem__(self, name: str) -> Tensor:
        return self._weights[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class OnHost(Weights):
    """Weights of any device, handed over on the CPU: what is computed from them then takes no memory of a card."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights

    def __getitem__(self, name: str) -> Tensor:
        return self._weights[name].detach().cpu()

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)


class TwoPointLine(Weights):
    """``lerp(a, b, beta)``: ``a`` at 0 and ``b`` at 1, both exactly; beyond 1 the line goes on.

    The form is ``torch.lerp``'s, since ``a + (b - a)`` is not ``b`` in floating point. With ``skip_norms`` weights of norms
    are ``b``'s; whatever is not a floating-point number always is. The names and the device are those of ``b``.
    """

    def __init__(self, a: Weights, b: Weights, beta: float, *, skip_norms: bool = False) -> None:
        _check_finite("beta", beta)
        _check_names(a, b)
        self._a, self._b, self._beta, self._skip_norms = a, b, beta, skip_norms

    def __getitem__(self, name: str) -> Tensor:
        end = self._b[name]
        if not end.is_floating_point() or (self._skip_norms and is_norm(name)):
            return end
        start = self._a[name]
        _check_shape(name, start, end)
        return torch.lerp(start.to(end), end, self._beta)

    def __iter__(self) -> Iterator[str]:
        return iter(self._b)

    def __len__(self) -> int:
        return len(self._b)


class FittedLine(Weights):
    """The least-squares line through the points ``(step, weights)``, one for each element, at ``target``.

    It is a weighted sum of the points, w_k = 1/K + (target - mean) (t_k - mean) / sum (t - mean)^2, taken in fp64 as
    differences from the last point. Norms with ``skip_norms``, and what is not a floating-point number, are the last point's.
    """

    def __init__(self, points: Sequence[tuple[float, Weights]], target: float, *, skip_norms: bool = False) -> None:
        steps = [step for step, _ in points]
        if len(set(steps)) < max(2, len(steps)):
            raise ModelError(f"a line needs two or more checkpoints of different steps, not those of {steps}")
        _check_finite("target", target)
        for _, weights in points:
            _check_names(weights, points[-1][1])
        self._points = [weights for _, weights in points]
        self._shares = least_squares_shares(steps, target)
        self._skip_norms = skip_norms

    def __getitem__(self, name: str) -> Tensor:
        last = self._points[-1][name]
        if not last.is_floating_point() or (self._skip_norms and is_norm(name)):
            return last
        total = torch.zeros(last.shape, dtype=torch.float64, device=last.device)
        for weights, share in zip(self._points[:-1], self._shares, strict=False):
            one = weights[name]
            _check_shape(name, one, last)
            total += (one.to(total) - last.double()) * share
        return (last.double() + total).to(last.dtype)

    def __iter__(self) -> Iterator[str]:
        return iter(self._points[-1])

    def __len__(self) -> int:
        return len(self._points[-1])


def least_squares_shares(steps: Sequence[float], target: float) -> list[float]:
    """How much of each point the fitted line's value at ``target`` is; the shares sum to 1."""
    mean = math.fsum(steps) / len(steps)
    spread = math.fsum((step - mean) ** 2 for step in steps)
    return [1 / len(steps) + (target - mean) * (step - mean) / spread for step in steps]


def distance(a: Weights, b: Weights) -> float:
    """Euclidean distance of two sets of weights over all floating-point elements, summed in fp64."""
    return math.sqrt(math.fsum(_square(a[name], b[name]) for name in b))


def _square(start: Tensor, end: Tensor) -> float:
    if not end.is_floating_point():
        return 0.0
    parts = zip(torch.split(start.reshape(-1), _PART), torch.split(end.reshape(-1), _PART), strict=True)
    return math.fsum(float((b.double() - a.to(b.device).double()).square().sum()) for a, b in parts)


def _check_names(a: Weights, b: Weights) -> None:
    missing, unknown = sorted(set(b) - set(a))[:3], sorted(set(a) - set(b))[:3]
    if missing or unknown:
        raise ModelError(f"the checkpoints hold different weights: only one has {[*missing, *unknown]}")


def _check_shape(name: str, one: Tensor, other: Tensor) -> None:
    if one.shape != other.shape:
        raise ModelError(f"{name} has the shapes {list(one.shape)} and {list(other.shape)} in the two checkpoints")


def _check_finite(what: str, value: float) -> None:
    if not math.isfinite(value):
        raise ModelError(f"{what} is {value}; it must be a finite number")
