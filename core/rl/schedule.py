"""The learning rate of an update, as a function of its number alone.

Updates (optimizer steps) are counted, not rollout steps, from 1 to U. A function of the number needs no state, so a resumed
run has the same rate without restoring anything.
"""

import math
from typing import Literal

Schedule = Literal["constant", "linear", "cosine"]


def learning_rate(schedule: Schedule, base: float, update: int, *, total: int, warmup: int = 0) -> float:
    """Return the learning rate of update ``update`` of ``total``.

    The warm-up rises in equal parts: update u of the first ``warmup`` has ``base * u / warmup``, so the first update is not
    wasted on a rate of 0 and the last of the warm-up has ``base``. Afterwards, with p = (u - 1 - warmup) / (total - warmup)
    going from 0 towards 1, ``linear`` has ``base * (1 - p)`` and ``cosine`` ``base * (1 + cos(pi p)) / 2``. Both have
    exactly ``base`` at the first update after the warm-up and would reach 0 one update after the last, which is not wasted
    either: it has ``base / (total - warmup)`` under ``linear``. The decay equals that of transformers' schedules.

    Args:
        schedule: ``constant``, ``linear`` or ``cosine``.
        base: the recipe's learning rate.
        update: number of the update, from 1.
        total: updates of the whole run (steps times updates per step).
        warmup: updates of the warm-up, at most ``total``.

    Raises:
        ValueError: for an unknown schedule or a number outside the above.
    """
    if schedule not in ("constant", "linear", "cosine"):
        raise ValueError(f"schedule must be 'constant', 'linear' or 'cosine', got {schedule!r}")
    if not 0.0 <= base < math.inf:
        raise ValueError(f"base must be 0 or more and finite, got {base}")
    if not 1 <= update <= total:
        raise ValueError(f"update must be between 1 and total = {total}, got {update}")
    if not 0 <= warmup <= total:
        raise ValueError(f"warmup must be between 0 and total = {total}, got {warmup}")
    if update <= warmup:
        return base * (update / warmup)
    if schedule == "constant":
        return base
    progress = (update - 1 - warmup) / (total - warmup)
    if schedule == "linear":
        return base * (1.0 - progress)
    return base * (0.5 * (1.0 + math.cos(math.pi * progress)))
