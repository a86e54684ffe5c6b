"""The recipe's own stopping conditions: ``stop: {max_hours, target, patience}``. They end a run as succeeded.

Damage is not decided here (``core.damage``), nor are failures.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class StopConditions:
    """``max_hours`` of work over all attempts; ``target`` held-out accuracy; ``patience`` looks without a new best."""

    max_hours: float | None = None
    target: float | None = None
    patience: int | None = None

    def reason(self, *, elapsed_s: float, accuracies: Sequence[float]) -> str | None:
        """Return why the run should end now, or None.

        ``accuracies`` are the held-out accuracies of the looks so far, oldest first, the base not included.
        """
        if self.max_hours is not None and elapsed_s >= self.max_hours * 3600:
            return f"max_hours {self.max_hours:g} reached"
        if not accuracies:
            return None
        if self.target is not None and accuracies[-1] >= self.target:
            return f"target {self.target:g} reached: held-out accuracy {accuracies[-1]:.4f}"
        if self.patience is not None:
            best_at = max(range(len(accuracies)), key=lambda look: (accuracies[look], -look))
            since = len(accuracies) - 1 - best_at
            if since >= self.patience:
                return f"no better look for {since} looks (patience {self.patience})"
        return None
