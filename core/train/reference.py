"""The frozen start model that a policy is compared with, and where it rests.

With all parameters trained it is a second copy of the model. It is needed once a step, to score the step's samples, when no
activations exist; so on a card it rests in page-locked host memory and comes over for the scoring. With adapters there is no
copy: the start model is the model without them.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from core.rl.offload import pinned
from core.train.update import Body, Head, MicroBatch, score


class Reference(Protocol):
    """Where the start model's answers come from."""

    def at_hand(self) -> AbstractContextManager[tuple[Body, Head]]:
        """Body and head on the policy's device, for as long as the context lasts."""

    def weight(self, name: str) -> Tensor:
        """The start model's value of the trained parameter ``name``, on any device."""


def reference_logp(reference: Reference, parts: Sequence[Sequence[MicroBatch]]) -> list[list[Tensor]]:
    """The start model's log-probs of every micro-batch of every update, [T] each."""
    with reference.at_hand() as (body, head):
        return [score(body, head, part) for part in parts]


class Resting:
    """A frozen model of its own. ``device`` is where it works; unless that is the CPU, its weights rest on the host."""

    def __init__(self, model: PreTrainedModel, body: Body, head: Head, device: torch.device) -> None:
        self.model = model
        self._body, self._head, self._device = body, head, device
        model.requires_grad_(False)
        if device.type == "cuda":
            self._parameters = list(model.parameters())
            _move_buffers(model, device)
            arena = pinned(sum(p.numel() for p in self._parameters), self, self._parameters[0].dtype)
            start = 0
            for parameter in self._parameters:
                home = arena[start : start + parameter.numel()].view(parameter.shape)
                home.copy_(parameter.data)
                parameter.data = home
                start += parameter.numel()

    @contextmanager
    def at_hand(self) -> Iterator[tuple[Body, Head]]:
        """See :class:`Reference`."""
        if self._device.type != "cuda":
            yield self._body, self._head
            return
        homes = [parameter.data for parameter in self._parameters]
        try:
            for parameter in self._parameters:
                parameter.data = parameter.data.to(self._device, non_blocking=True)
            yield self._body, self._head
        finally:
            for parameter, home in zip(self._parameters, homes, strict=True):
                parameter.data = home

    def weight(self, name: str) -> Tensor:
        """See :class:`Reference`."""
        return self.model.get_parameter(name)


class WithoutAdapters:
    """The policy's own model with its adapters left out; ``disabled`` is the context in which they are."""

    def __init__(self, body: Body, head: Head, disabled: Callable[[], AbstractContextManager[Any]]) -> None:
        self._body, self._head, self._disabled = body, head, disabled

    @contextmanager
    def at_hand(self) -> Iterator[tuple[Body, Head]]:
        """See :class:`Reference`."""
        with self._disabled():
            yield self._body, self._head

    def weight(self, name: str) -> Tensor:
        """Adapters have no value in the start model."""
        raise KeyError(f"{name} is an adapter; the start model has none")


def _move_buffers(model: nn.Module, device: torch.device) -> None:
    for module in model.modules():
        for name, buffer in list(module.named_buffers(recurse=False)):
            setattr(module, name, buffer.to(device))
