"""Times as the API writes them: UTC, ISO 8601, ending in ``Z``. It reads no clock; the database has the only one."""

from datetime import UTC, datetime
from functools import lru_cache
from typing import overload


@overload
def iso(seconds: float) -> str: ...
@overload
def iso(seconds: None) -> None: ...
@overload
def iso(seconds: float | None) -> str | None: ...
def iso(seconds: float | None) -> str | None:
    """Unix seconds to ``2026-01-31T12:00:00.250Z`` (milliseconds, rounded down); ``None`` stays ``None``."""
    if seconds is None:
        return None
    minute, rest = divmod(round(seconds * 1e6) // 1000, 60_000)
    return f"{_minute(minute)}:{rest // 1000:02d}.{rest % 1000:03d}Z"


@lru_cache(maxsize=4096)
def _minute(minutes: int) -> str:
    """Date, hour and minute. Curves write thousands of times that share them, and a calendar is slow."""
    return datetime.fromtimestamp(minutes * 60, UTC).isoformat(timespec="minutes")[:-6]


def from_iso(text: str) -> float:
    """``2026-01-31T12:00:00Z`` (or another offset) to unix seconds. Raises ``ValueError`` without an offset or a date."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError("a time needs its offset; end it in Z for UTC")
    return moment.timestamp()
