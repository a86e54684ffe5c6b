"""Host to card without waiting for the card."""

import torch
from torch import Tensor


def to_device(value: Tensor, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """``value`` on ``device`` (and in ``dtype``); from the host to a CUDA device through pinned memory, asynchronously.

    A plain copy waits until everything launched before it is done, which leaves the card idle while the next launches are
    prepared. Pinned blocks come from torch's cache, which does not reuse them before their copy has finished.
    """
    value = value if dtype is None else value.to(dtype)
    if value.device.type == "cpu" and device.type == "cuda":
        return value.pin_memory().to(device, non_blocking=True)
    return value.to(device)
