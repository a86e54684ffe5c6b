"""Times as the API writes them: UTC, ISO 8601, ending in ``Z``. It reads no clock; the database has the only one."""

from datetime import UTC, datetime
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
    # Cut off "+00:00": curves write thousands of these, and a search for it costs as much as the rest.
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")[:-6] + "Z"


def from_iso(text: str) -> float:
    """``2026-01-31T12:00:00Z`` (or another offset) to unix seconds. Raises ``ValueError`` without an offset or a date."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError("a time needs its offset; end it in Z for UTC")
    return moment.timestamp()
