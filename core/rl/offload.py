"""AdamW whose fp32 masters and moments live in pinned host memory and pass through the card block by block.

For a model of P parameters the card holds the weights and gradients only; the host holds 12 P bytes, page-locked. A step
moves them to the card and back once, in both directions at a time: while one block is updated the next is on its way in
and the last on its way out. The arithmetic is :class:`core.rl.optim.AdamW`'s, by the same kernel, so the numbers are the same.

The step begins after the backward, because clipping needs the norm of the whole gradient.
"""

import weakref
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from core.rl.optim import AdamW

BLOCK_ELEMENTS = 1 << 24  # 64 MiB of fp32
SLOTS = 3  # one coming in, one worked on, one going out
STAGING_BYTES = (3 * SLOTS + 1) * BLOCK_ELEMENTS * 4  # on the card during a step; the last is the gradient in fp32


@dataclass(frozen=True, slots=True)
class _Block:
    """A range of one parameter's elements."""

    name: str
    part: slice


class OffloadedAdamW(AdamW):
    """See the module; on a machine without a card a plain AdamW that works in blocks.

    Masters and moments are host tensors whatever the parameters' dtype. Everything else, from ``state_tensors`` to
    ``load_masters``, is as for AdamW. All parameters must be on one device.
    """

    def _new_state(self) -> tuple[dict[str, Tensor], dict[str, dict[str, Tensor]]]:
        devices = {parameter.device for parameter in self.parameters.values()}
        if len(devices) != 1:
            raise ValueError(f"all parameters must be on one device, got {sorted(map(str, devices))}")
        (self._device,) = devices
        if self._device.type != "cuda":
            return super()._new_state()
        sizes = {name: parameter.numel() for name, parameter in self.parameters.items()}
        arena = pinned(3 * sum(sizes.values()), self)
        kinds: list[dict[str, Tensor]] = [{}, {}, {}]
        start = 0
        for name, parameter in self.parameters.items():
            for kind in kinds:
                kind[name] = arena[start : start + sizes[name]].view(parameter.shape)
                start += sizes[name]
            kinds[0][name].copy_(parameter.detach())
        return kinds[0], dict(zip(self._moment_names, kinds[1:], strict=True))

    def _apply(self, lr: float) -> None:
        if self._device.type == "cuda":
            self._stream_through_card(lr)
        else:
            for block in self._blocks():
                self._update_block(block, self._host_parts(block), lr, scratch=None)
        for name, parameter in self.parameters.items():
            if parameter.grad is not None:
                self.steps[name].add_(1)

    def _blocks(self) -> Iterator[_Block]:
        for name, parameter in self.parameters.items():
            if parameter.grad is not None:
                for start in range(0, parameter.numel(), BLOCK_ELEMENTS):
                    yield _Block(name, slice(start, min(start + BLOCK_ELEMENTS, parameter.numel())))

    def _host_parts(self, block: _Block) -> tuple[Tensor, Tensor, Tensor]:
        first, second = (self.moments[moment][block.name].view(-1)[block.part] for moment in self._moment_names)
        return self.masters[block.name].view(-1)[block.part], first, second

    def _stream_through_card(self, lr: float) -> None:
        work = torch.cuda.current_stream(self._device)
        incoming = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        outgoing = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        staging = torch.empty(SLOTS, 3, BLOCK_ELEMENTS, dtype=torch.float32, device=self._device)
        scratch = torch.empty(BLOCK_ELEMENTS, dtype=torch.float32, device=self._device)
        incoming.wait_stream(work)
        stored: list[torch.cuda.Event | None] = [None] * SLOTS
        for place, block in enumerate(self._blocks()):
            slot, host = place % SLOTS, self._host_parts(block)
            card = (staging[slot, 0], staging[slot, 1], staging[slot, 2])
            parts = tuple(part[: host[0].numel()] for part in card)
            with torch.cuda.stream(incoming):
                if (free := stored[slot]) is not None:
                    incoming.wait_event(free)
                for target, source in zip(parts, host, strict=True):
                    target.copy_(source, non_blocking=True)
            work.wait_stream(incoming)
            self._update_block(block, (parts[0], parts[1], parts[2]), lr, scratch)
            outgoing.wait_stream(work)
            with torch.cuda.stream(outgoing):
                for target, source in zip(host, parts, strict=True):
                    target.copy_(source, non_blocking=True)
                stored[slot] = outgoing.record_event()
        # The host reads masters and moments next, and the staging memory goes back to the allocator.
        outgoing.synchronize()

    def _update_block(
        self, block: _Block, state: tuple[Tensor, Tensor, Tensor], lr: float, scratch: Tensor | None
    ) -> None:
        parameter = self.parameters[block.name]
        master, first, second = state
        grad = parameter.grad.view(-1)[block.part]  # type: ignore[union-attr]
        grad = grad.to(master.dtype) if scratch is None else scratch[: grad.numel()].copy_(grad)
        # The kernel counts its own step; each block of a parameter gets the count from before this update.
        step = torch.full((), float(self.steps[block.name]), dtype=torch.float32, device=master.device)
        adamw(
            [master],
            [grad],
            [first],
            [second],
            [],
            [step],
            fused=True,
            amsgrad=False,
            beta1=self.betas[0],
            beta2=self.betas[1],
            lr=lr,
            weight_decay=self.weight_decay,
            eps=self.eps,
            maximize=False,
        )
        weight = parameter.detach().view(-1)[block.part]
        if weight.data_ptr() != master.data_ptr():
            weight.copy_(master)


def pinned(elements: int, owner: object, dtype: torch.dtype = torch.float32) -> Tensor:
    """A zeroed host tensor, page-locked as long as ``owner`` lives.

    Registered, not allocated by torch's cache, which rounds each block up to a power of two: 18.5 GB would take 32.

    Raises:
        MemoryError: when the system does not lock that much, with what to do.
    """
    arena = torch.zeros(elements, dtype=dtype)
    runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    problem = runtime.cudaHostRegister(arena.data_ptr(), arena.nbytes, 0)
    if int(problem) != 0:
        raise MemoryError(
            f"{arena.nbytes / 2**30:.1f} GiB of host memory could not be page-locked (CUDA error {int(problem)}); "
            "give the process more locked memory (ulimit -l) or choose the optimizer adamw_8bit"
        )
    weakref.finalize(owner, runtime.cudaHostUnregister, arena.data_ptr())
    return arena
