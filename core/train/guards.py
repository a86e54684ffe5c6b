"""The last line before a checkpoint: weights that hold a number that is not finite are never written.

Gradients and moments are looked at before every update; what could still ruin weights is an update whose arithmetic overflows
or state in host memory that was damaged there.
"""

import torch

from core.jobs import UserError
from core.rl.optim import MasterOptimizer


@torch.no_grad()
def refuse_nonfinite_weights(optimizer: MasterOptimizer, step: int) -> None:
    """Raise :class:`UserError` naming the tensors when weights of ``step`` are not finite; earlier checkpoints stay good."""
    sums = {name: value.sum(dtype=torch.float64) for name, value in optimizer.masters.items()}
    broken = [name for name, total in sums.items() if not bool(torch.isfinite(total))]
    if broken:
        shown = ", ".join(broken[:3])
        raise UserError(
            "nonfinite_weights",
            f"{len(broken)} weight tensors are not finite after step {step}, first: {shown}; no checkpoint of them is written "
            "and the newest one before is good (a lower learning_rate usually helps)",
        )
