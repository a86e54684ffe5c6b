"""AdamW and SGD whose state is plain tensors, with float32 masters for weights of lower precision.

bfloat16 has eight bits of precision: a weight near 1 does not move by less than 0.002, so at learning rates of
reinforcement learning bfloat16 weights alone stand still. A master in float32 takes the update and the weight is its
rounding. Where the weight is float32 already the master is the weight itself, not a copy.

Deliberately absent: parameter groups, closures, schedules (:mod:`core.rl.schedule`), and files: the caller stores
``state_tensors()``.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim.adamw import adamw

# Short enough that the float32 rounding of a block stays below one part in a million.
_NORM_BLOCK = 512


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one call of ``step`` did.

    Attributes:
        applied: False when nothing was changed, because a gradient was not finite.
        grad_norm: global norm before clipping; infinite or NaN when not applied.
        clip_scale: factor the gradients were multiplied by, 1 when not clipped.
        lr: the learning rate asked for.
        nonfinite: names of the parameters whose gradients are not finite; empty when applied.
    """

    applied: bool
    grad_norm: float
    clip_scale: float
    lr: float
    nonfinite: tuple[str, ...] = ()


class MasterOptimizer(ABC):
    """Masters, gradient norm, clipping and state that AdamW and SGD share.

    Gradients are read from each parameter's ``.grad``; a parameter whose gradient is None is left alone. A bfloat16
    parameter may hold a float32 gradient (``parameter.grad_dtype = torch.float32``).
    """

    _moment_names: tuple[str, ...] = ()

    def __init__(self, named_parameters: Iterable[tuple[str, Tensor]], *, lr: float, weight_decay: float = 0.0) -> None:
        self.parameters: dict[str, Tensor] = dict(named_parameters)
        if not self.parameters:
            raise ValueError("named_parameters must not be empty")
        for name, parameter in self.parameters.items():
            if not parameter.is_floating_point():
                raise ValueError(f"parameter {name!r} must be a floating tensor, got {parameter.dtype}")
        _check_number("lr", lr)
        _check_number("weight_decay", weight_decay)
        self.lr = lr
        self.weight_decay = weight_decay
        self.masters, self.moments = self._new_state()
        self.steps: dict[str, Tensor] = {
            name: torch.zeros((), dtype=torch.float32, device=master.device) for name, master in self.masters.items()
        }

    def _new_state(self) -> tuple[dict[str, Tensor], dict[str, dict[str, Tensor]]]:
        """Masters, and moments of 0, by parameter."""
        masters = {name: _master(value) for name, value in self.parameters.items()}
        moments = {
            moment: {name: torch.zeros_like(master) for name, master in masters.items()}
            for moment in self._moment_names
        }
        return masters, moments

    @abstractmethod
    def _update(self, name: str, grad: Tensor, lr: float) -> None:
        """Update one master from its gradient, which may be overwritten."""

    def _apply(self, lr: float) -> None:
        """Update every master that has a gradient, and its weight."""
        for name, parameter in self.parameters.items():
            if parameter.grad is None:
                continue
            master = self.masters[name]
            self._update(name, parameter.grad.to(master.dtype), lr)
            if not _aliases(parameter, master):
                parameter.copy_(master)

    @torch.no_grad()
    def step(self, lr: float | None = None, *, max_grad_norm: float | None = None) -> StepResult:
        """Take one update, unless a gradient is not finite: then change nothing and say so.

        Args:
            lr: learning rate of this update; None takes the one given at construction.
            max_grad_norm: scale the gradients in place down to this global norm; None does not clip.
        """
        lr = self.lr if lr is None else lr
        _check_number("lr", lr)
        norm = self.grad_norm()
        if not math.isfinite(norm):
            return StepResult(applied=False, grad_norm=norm, clip_scale=1.0, lr=lr, nonfinite=self._nonfinite())
        scale = self.clip_(max_grad_norm, norm) if max_grad_norm is not None else 1.0
        self._apply(lr)
        return StepResult(applied=True, grad_norm=norm, clip_scale=scale, lr=lr)

    @torch.no_grad()
    def grad_norm(self) -> float:
        """Global L2 norm of all gradients; summed in float64, one transfer from the device."""
        squares = [_square_sum(parameter.grad) for parameter in self.parameters.values() if parameter.grad is not None]
        return float(torch.stack([s.to(squares[0].device) for s in squares]).sum().sqrt()) if squares else 0.0

    @torch.no_grad()
    def clip_(self, max_grad_norm: float, norm: float | None = None) -> float:
        """Scale all gradients in place so that their global norm is at most ``max_grad_norm``; return the factor.

        The factor is ``max_grad_norm / (norm + 1e-6)``, as in ``torch.nn.utils.clip_grad_norm_``. A norm that is not
        finite raises ValueError: scaling would spread it over every gradient.
        """
        if not max_grad_norm > 0:
            raise ValueError(f"max_grad_norm must be positive, got {max_grad_norm}")
        norm = self.grad_norm() if norm is None else norm
        if not math.isfinite(norm):
            raise ValueError(f"the gradient norm is {norm}; check it before clipping")
        scale = min(1.0, max_grad_norm / (norm + 1e-6))
        if scale < 1.0:
            for parameter in self.parameters.values():
                if parameter.grad is not None:
                    parameter.grad.mul_(scale)
        return scale

    def zero_grad(self) -> None:
        """Fill the gradients with 0 and keep the buffers."""
        for parameter in self.parameters.values():
            if parameter.grad is not None:
                parameter.grad.zero_()

    @torch.no_grad()
    def refresh_masters(self) -> None:
        """Take the masters from the weights, after these were written from outside; moments stay."""
        for name, parameter in self.parameters.items():
            if not _aliases(parameter, self.masters[name]):
                self.masters[name].copy_(parameter)

    @torch.no_grad()
    def load_masters(self, tensors: Mapping[str, Tensor]) -> None:
        """Write ``tensors`` (one per parameter, by name) to the masters and, rounded, to the weights."""
        _check_names(set(self.parameters), set(tensors), "masters")
        for name, parameter in self.parameters.items():
            _copy_checked(self.masters[name], tensors[name], name)
            if not _aliases(parameter, self.masters[name]):
                parameter.copy_(self.masters[name])

    def reset_moments(self) -> None:
        """Forget the moments and the update count, as a new optimizer would have them."""
        for tensor in self._state().values():
            tensor.zero_()

    def state_tensors(self, *, masters: bool = True) -> dict[str, Tensor]:
        """The state as named tensors (not copies): ``MOMENT.NAME``, ``step.NAME`` and ``master.NAME``.

        Args:
            masters: include the masters that are not the weights themselves. Pass False when the checkpoint's weights
                are ``self.masters``, and give those to :meth:`load_masters` before loading the state.
        """
        state = self._state()
        if masters:
            state |= self._own_masters()
        return state

    @torch.no_grad()
    def load_state_tensors(self, state: Mapping[str, Tensor]) -> None:
        """Copy what :meth:`state_tensors` gave into this optimizer; included masters also write the weights.

        Raises:
            ValueError: naming the entries that are missing, unknown or of another shape; nothing was changed then.
        """
        own = self._own_masters()
        target = self._state()
        if any(name.startswith("master.") for name in state):
            target |= own
        _check_names(set(target), set(state), "state_tensors")
        for name, tensor in target.items():
            _check_shape(tensor, state[name], name)
        for name, tensor in target.items():
            tensor.copy_(state[name])
        for name in own.keys() & target.keys():
            parameter = name.removeprefix("master.")
            self.parameters[parameter].detach().copy_(self.masters[parameter])

    def _state(self) -> dict[str, Tensor]:
        state = {f"{moment}.{name}": value for moment, values in self.moments.items() for name, value in values.items()}
        return state | {f"step.{name}": value for name, value in self.steps.items()}

    def _own_masters(self) -> dict[str, Tensor]:
        return {
            f"master.{name}": master
            for name, master in self.masters.items()
            if not _aliases(self.parameters[name], master)
        }

    def _nonfinite(self) -> tuple[str, ...]:
        return tuple(
            name
            for name, parameter in self.parameters.items()
            if parameter.grad is not None and not math.isfinite(float(_square_sum(parameter.grad)))
        )


class AdamW(MasterOptimizer):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019, algorithm 2), by torch's own fused kernel.

    Moments are float32 and the decay applies to every parameter, as in ``torch.optim.AdamW``.
    """

    _moment_names: tuple[str, ...] = ("exp_avg", "exp_avg_sq")

    def __init__(
        self,
        named_parameters: Iterable[tuple[str, Tensor]],
        *,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(named_parameters, lr=lr, weight_decay=weight_decay)
        if not all(0.0 <= beta < 1.0 for beta in betas):
            raise ValueError(f"betas must lie in [0, 1), got {betas}")
        _check_number("eps", eps)
        self.betas = betas
        self.eps = eps

    def _update(self, name: str, grad: Tensor, lr: float) -> None:
        # One parameter at a time, so that at most one float32 copy of a gradient exists; fused has no temporaries.
        adamw(
            [self.masters[name]],
            [grad],
            [self.moments["exp_avg"][name]],
            [self.moments["exp_avg_sq"][name]],
            [],
            [self.steps[name]],
            fused=True,
            amsgrad=False,
            beta1=self.betas[0],
            beta2=self.betas[1],
            lr=lr,
            weight_decay=self.weight_decay,
            eps=self.eps,
            maximize=False,
        )


class SGD(MasterOptimizer):
    """Stochastic gradient descent with optional momentum; the decay is added to the gradient, as in ``torch.optim.SGD``."""

    def __init__(
        self,
        named_parameters: Iterable[tuple[str, Tensor]],
        *,
        lr: float,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
    ) -> None:
        if not 0.0 <= momentum < 1.0:
            raise ValueError(f"momentum must lie in [0, 1), got {momentum}")
        self.momentum = momentum
        # Without momentum there is nothing to keep, and a buffer would cost a copy of the model.
        self._moment_names = ("momentum",) if momentum else ()
        super().__init__(named_parameters, lr=lr, weight_decay=weight_decay)

    def _update(self, name: str, grad: Tensor, lr: float) -> None:
        master = self.masters[name]
        if self.weight_decay:
            grad = grad.add(master, alpha=self.weight_decay)
        if self.momentum:
            grad = self.moments["momentum"][name].mul_(self.momentum).add_(grad)
        master.add_(grad, alpha=-lr)
        self.steps[name].add_(1)


@dataclass(frozen=True, slots=True)
class ChangedShare:
    """Elements that differ between two sets of tensors, bit patterns of equal value counted as equal."""

    changed: int
    total: int

    @property
    def share(self) -> float:
        """Changed elements divided by all, 0 for no elements."""
        return self.changed / self.total if self.total else 0.0


def changed_share(current: Mapping[str, Tensor], reference: Mapping[str, Tensor]) -> ChangedShare:
    """Count the elements of ``current`` that differ from ``reference``, each compared in ``current``'s dtype."""
    _check_names(set(current), set(reference), "reference")
    changed = sum(int((value != reference[name].to(value)).sum()) for name, value in current.items())
    return ChangedShare(changed=changed, total=sum(value.numel() for value in current.values()))


def _master(parameter: Tensor) -> Tensor:
    wanted = torch.promote_types(parameter.dtype, torch.float32)
    value = parameter.detach()
    return value if value.dtype == wanted else value.to(wanted)


def _aliases(parameter: Tensor, master: Tensor) -> bool:
    return parameter.dtype == master.dtype and parameter.device == master.device


def _square_sum(grad: Tensor) -> Tensor:
    """Sum of squares in float64: norms of short blocks in the gradient's precision (at least float32), then float64.

    A float32 sum over a whole embedding is off by parts in a thousand; a float64 pass over it is ten times slower.
    """
    wide = torch.promote_types(grad.dtype, torch.float32)
    flat = grad.detach().reshape(-1)
    whole = flat.numel() // _NORM_BLOCK * _NORM_BLOCK
    blocks = torch.linalg.vector_norm(flat[:whole].view(-1, _NORM_BLOCK), dim=1, dtype=wide).double()
    rest = torch.linalg.vector_norm(flat[whole:], dtype=wide).double()
    total: Tensor = blocks.square().sum() + rest.square()
    return total


def _check_number(name: str, value: float) -> None:
    if not 0.0 <= value < math.inf:
        raise ValueError(f"{name} must be 0 or more and finite, got {value}")


def _check_names(expected: set[str], found: set[str], what: str) -> None:
    if expected != found:
        missing, unknown = sorted(expected - found)[:5], sorted(found - expected)[:5]
        raise ValueError(f"{what} must name exactly this optimizer's tensors; missing {missing}, unknown {unknown}")


def _check_shape(target: Tensor, value: Tensor, name: str) -> None:
    if target.shape != value.shape:
        raise ValueError(f"{name} must have the shape {tuple(target.shape)}, got {tuple(value.shape)}")


def _copy_checked(target: Tensor, value: Tensor, name: str) -> None:
    _check_shape(target, value, name)
    target.copy_(value)
