"""Where an attempt of a train run stands: what its checkpoints carry from one attempt to the next besides weights."""

from dataclasses import dataclass, field
from time import monotonic
from typing import Any


@dataclass
class Progress:
    """Where the run stands. ``worked_s`` is the time spent by earlier attempts up to the checkpoint they left."""

    step: int = 0
    nonfinite: int = 0
    worked_s: float = 0.0
    began: float = field(default_factory=monotonic)

    @property
    def elapsed_s(self) -> float:
        return self.worked_s + monotonic() - self.began

    def state(self) -> dict[str, Any]:
        return {"nonfinite": self.nonfinite, "worked_s": round(self.elapsed_s, 3)}
