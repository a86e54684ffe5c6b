"""How times, durations, numbers and curves are said in a terminal: pure functions from values to text."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise

_BARS = "▁▂▃▄▅▆▇█"
_MINUTE, _HOUR, _DAY = 60, 3600, 86400
NONE = "-"
# C0 but tab and newline, DEL, C1, and the marks that embed, override or isolate a reading direction.
_STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def plain(text: str) -> str:
    """Text that others wrote, safe to show: what would steer a terminal, or turn the reading direction, is spelled out.

    Logs and answers hold what a model or a library wrote; an escape sequence in them could set the title, hide lines or paste.
    """
    return _STEERING.sub(lambda found: ascii(found[0])[1:-1], text)


def now() -> datetime:
    """The present moment, with its zone."""
    return datetime.now(UTC)


def local(text: str) -> datetime:
    """A time of the service (ISO 8601, UTC) in this machine's zone."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")).astimezone()


def clock(text: str) -> str:
    """Only the local time of day."""
    return f"{local(text):%H:%M:%S}"


def moment(text: str | None, at: datetime | None = None) -> str:
    """When, in local words: ``just now``, ``5 min ago``, ``today 14:03``, ``yesterday 23:10``, ``12 Nov 08:30``."""
    if text is None:
        return NONE
    then, here = local(text), (at or now()).astimezone()
    age = (here - then).total_seconds()
    if -10 < age < _HOUR:
        return _ago(age)
    if then.date() == here.date():
        return f"today {then:%H:%M}"
    if then.date() == (here - timedelta(days=1)).date():
        return f"yesterday {then:%H:%M}"
    year = "" if then.year == here.year else f" {then.year}"
    return f"{then.day} {then:%b}{year} {then:%H:%M}"


def _ago(seconds: float) -> str:
    if seconds < 10:
        return "just now"
    return f"{seconds:.0f} s ago" if seconds < _MINUTE else f"{seconds // _MINUTE:.0f} min ago"


def duration(seconds: float | None) -> str:
    """``0.4 s``, ``42 s``, ``6 min 12 s``, ``3 h 05 min``, ``2 d 4 h``."""
    if seconds is None:
        return NONE
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < _MINUTE:
        return f"{whole} s"
    if whole < _HOUR:
        return f"{whole // _MINUTE} min {whole % _MINUTE:02d} s"
    if whole < _DAY:
        return f"{whole // _HOUR} h {whole % _HOUR // _MINUTE:02d} min"
    return f"{whole // _DAY} d {whole % _DAY // _HOUR} h"


def between(start: str | None, end: str | None) -> float | None:
    """Seconds from one time of the service to another, None where one is missing."""
    if start is None or end is None:
        return None
    return (local(end) - local(start)).total_seconds()


def number(value: float | None) -> str:
    """Four significant digits at most, without a needless exponent."""
    if value is None:
        return NONE
    if value == 0 or 1e-3 <= abs(value) < 1e4:
        return f"{value:.4g}"
    return f"{value:.2e}"


def share(value: float | None) -> str:
    """A share as per cent."""
    return NONE if value is None else f"{100 * value:.1f} %"


def interval(ci: Sequence[float | None] | None) -> str:
    """A confidence interval of a share."""
    if ci is None or None in ci:
        return NONE
    low, high = (100 * float(end or 0) for end in ci)
    return f"{low:.0f} to {high:.0f} %"


def spark(values: Sequence[float | None], width: int = 24) -> str:
    """A curve in one line, lowest to highest; a value that is not finite is a blank. Long curves are averaged in groups."""
    cells = _grouped(values, width)
    known = [value for value in cells if value is not None]
    if not known:
        return ""
    low, high = min(known), max(known)
    if high == low:
        return "".join(" " if value is None else _BARS[3] for value in cells)
    scale = (len(_BARS) - 1) / (high - low)
    return "".join(" " if value is None else _BARS[round((value - low) * scale)] for value in cells)


def _grouped(values: Sequence[float | None], width: int) -> list[float | None]:
    if len(values) <= width:
        return list(values)
    bounds = [len(values) * cell // width for cell in range(width + 1)]
    return [_mean(values[first:last]) for first, last in pairwise(bounds)]


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def count(value: float | None) -> str:
    """A count of items; halves occur where the base model's runs disagree."""
    return NONE if value is None else f"{value:g}"


def state(name: str) -> str:
    """A state as words."""
    return name.replace("_", " ")
