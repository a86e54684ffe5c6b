"""What a runner's exit status tells its supervisor. Every other status is a crash."""

from enum import IntEnum


class RunnerExit(IntEnum):
    """Exit statuses of ``python -m worker.runner``."""

    RECORDED = 0
    """The outcome is in the store."""
    DRAINED = 3
    """The attempt was interrupted at its own request and says so in the store."""
    BUSY = 4
    """Another process holds the card or the run; nothing was begun."""
    SOFTWARE = 70
    """An unexpected exception; the traceback is in the log."""
    STALE = 75
    """The attempt no longer holds its run; somebody else decides about it."""
