"""AdamW whose two moments are stored in eight bits an element: 2 bytes and a little instead of 8.

The format is the block-wise dynamic one of Dettmers et al. 2022 ("8-bit Optimizers via Block-wise Quantization"): every 256
elements share one float32 scale, their largest magnitude, and a code stands for one of a fixed set of fractions of it whose
spacing grows with their size, decade by decade. Two things differ from that paper, both because learning from rewards takes
many small steps:

- Rounding is to either neighbour, with probabilities that make the stored value right on average. Adam's second moment
  moves by a thousandth a step, less than half a code: rounded to the nearest it would stand still. The coin is a hash of the
  element's place, the parameter's name and the update's number, so a repeated or resumed update rounds the same way.
- A second moment above 0 never becomes 0, so that no update is divided by ``eps`` alone.

Masters stay float32. Plain torch operations on every device; nothing here allocates more than a few pieces of
``PIECE_ELEMENTS``.
"""

import zlib
from functools import cache

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from core.rl.optim import AdamW

BLOCK = 256
PIECE_ELEMENTS = 1 << 22  # a multiple of BLOCK; workspace is about 20 bytes for each
WORKSPACE_BYTES = 64 * PIECE_ELEMENTS  # on the device during a step

_SIGNED_DECADES, _UNSIGNED_DECADES = 7, 8  # 1 + 2 + ... + 64 = 127 codes of either sign, 1 + 2 + ... + 128 = 255
_WORD = 0xFFFFFFFF


@cache
def fractions(decades: int) -> Tensor:
    """The fractions of a block's scale that codes 0, 1, 2, ... stand for, rising from 0 to 1, in float32 on the host.

    The top decade (0.1, 1] has ``2 ** (decades - 1)`` evenly spaced values, each decade below half as many.
    """
    values = [torch.zeros(1, dtype=torch.float64)]
    for decade in range(decades - 1, -1, -1):
        count = 2 ** (decades - 1 - decade)
        high = 10.0**-decade
        values.append(torch.linspace(0.1 * high, high, count + 1, dtype=torch.float64)[1:])
    return torch.cat(values).float()


def quantize(values: Tensor, coins: Tensor, *, signed: bool) -> tuple[Tensor, Tensor]:
    """Codes (int8 when ``signed``, else uint8) and one scale per block of 256.

    Args:
        values: float32, one dimension; not negative unless ``signed``.
        coins: in [0, 1), one per value; the upper neighbour is taken where the coin is below the distance to the lower.
        signed: whether values have signs.
    """
    count = values.numel()
    blocks = torch.nn.functional.pad(values, (0, -count % BLOCK)).view(-1, BLOCK)
    scale = blocks.abs().amax(dim=1)
    part = (blocks.abs() / scale.clamp_min(torch.finfo(torch.float32).tiny)[:, None]).view(-1)[:count]
    table = fractions(_SIGNED_DECADES if signed else _UNSIGNED_DECADES).to(values.device)
    upper = torch.searchsorted(table, part).clamp_(1, table.numel() - 1)
    low, high = table[upper - 1], table[upper]
    codes = upper - 1 + (coins < (part - low) / (high - low))
    if not signed:
        return torch.where(values > 0, codes.clamp_min(1), 0).to(torch.uint8), scale
    return torch.where(values < 0, -codes, codes).to(torch.int8), scale


def dequantize(codes: Tensor, scale: Tensor) -> Tensor:
    """The float32 values that :func:`quantize`'s codes stand for."""
    signed = codes.dtype == torch.int8
    table = fractions(_SIGNED_DECADES if signed else _UNSIGNED_DECADES).to(codes.device)
    places = codes.long()
    part = table[places.abs()] if signed else table[places]
    count = codes.numel()
    values = (torch.nn.functional.pad(part, (0, -count % BLOCK)).view(-1, BLOCK) * scale[:, None]).view(-1)[:count]
    return torch.where(places < 0, -values, values) if signed else values


def coins(start: int, count: int, salt: Tensor) -> Tensor:
    """Numbers in [0, 1) that look drawn, one for each of the elements ``start`` to ``start + count``.

    They follow from the element's place and ``salt`` (an int64 scalar on the device) alone. The mixing is the finaliser of
    MurmurHash3 (Appleby, public domain).
    """
    word = torch.arange(start, start + count, dtype=torch.int64, device=salt.device)
    word = (word * 0x9E3779B1 + salt) & _WORD
    word = ((word ^ (word >> 16)) * 0x85EBCA6B) & _WORD
    word = ((word ^ (word >> 13)) * 0xC2B2AE35) & _WORD
    word = word ^ (word >> 16)
    return (word >> 8).float() * 2.0**-24


class AdamW8bit(AdamW):
    """See the module. Everything but the moments is as for AdamW.

    ``moments`` holds for each of the two its codes, in the parameter's shape, and its scales, one per block; all are part of
    ``state_tensors``.
    """

    _moment_names = ("exp_avg", "exp_avg_scale", "exp_avg_sq", "exp_avg_sq_scale")

    def _new_state(self) -> tuple[dict[str, Tensor], dict[str, dict[str, Tensor]]]:
        masters = super()._new_state()[0]
        moments: dict[str, dict[str, Tensor]] = {moment: {} for moment in self._moment_names}
        for name, master in masters.items():
            for moment, dtype in (("exp_avg", torch.int8), ("exp_avg_sq", torch.uint8)):
                moments[moment][name] = torch.zeros_like(master, dtype=dtype)
                blocks = -(-master.numel() // BLOCK)
                moments[f"{moment}_scale"][name] = torch.zeros(blocks, dtype=torch.float32, device=master.device)
        return masters, moments

    def _apply(self, lr: float) -> None:
        for name, parameter in self.parameters.items():
            if parameter.grad is None:
                continue
            for start in range(0, parameter.numel(), PIECE_ELEMENTS):
                self._update_piece(name, start, min(start + PIECE_ELEMENTS, parameter.numel()), lr)
            self.steps[name].add_(1)

    def _update_piece(self, name: str, start: int, end: int, lr: float) -> None:
        parameter, part, blocks = self.parameters[name], slice(start, end), slice(start // BLOCK, -(-end // BLOCK))
        master = self.masters[name].view(-1)[part]
        moments = {
            moment: (self.moments[moment][name].view(-1)[part], self.moments[f"{moment}_scale"][name][blocks])
            for moment in ("exp_avg", "exp_avg_sq")
        }
        first, second = (dequantize(*stored).to(master.dtype) for stored in moments.values())
        adamw(
            [master],
            [parameter.grad.view(-1)[part].to(master.dtype)],  # type: ignore[union-attr]
            [first],
            [second],
            [],
            [self.steps[name].clone()],  # the kernel counts its own step; the caller counts once per parameter
            fused=True,
            amsgrad=False,
            beta1=self.betas[0],
            beta2=self.betas[1],
            lr=lr,
            weight_decay=self.weight_decay,
            eps=self.eps,
            maximize=False,
        )
        for place, (values, (codes, scale)) in enumerate(zip((first, second), moments.values(), strict=True)):
            drawn = coins(start, end - start, self._salt(name, place))
            new_codes, new_scale = quantize(values.float(), drawn, signed=place == 0)
            codes.copy_(new_codes)
            scale.copy_(new_scale)
        weight = parameter.detach().view(-1)[part]
        if weight.data_ptr() != master.data_ptr():
            weight.copy_(master)

    def _salt(self, name: str, place: int) -> Tensor:
        """A number for this parameter, moment and update, without waiting for the device."""
        return self.steps[name].long() * 0x632BE5AB + zlib.crc32(f"{place} {name}".encode())
