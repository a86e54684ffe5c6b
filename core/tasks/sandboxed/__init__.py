"""Programs that run inside the sandbox: :mod:`.candidate` runs a completion, :mod:`.judge` runs a data set's tests.

They are started as ``python -I -c TEXT`` and see no file of this project, so they use the standard library only and
share :mod:`.wire` by having its text put in front of theirs. Nothing here decides a verdict.
"""

from functools import cache
from pathlib import Path

_FOLDER = Path(__file__).parent
_SHARED = "from core.tasks.sandboxed.wire import "


@cache
def source(driver: str) -> str:
    """The text of a driver, ``candidate`` or ``judge``, with the wire format in place of its import."""
    text = (_FOLDER / f"{driver}.py").read_text(encoding="utf-8")
    lines = text.split("\n")
    first = next(index for index, line in enumerate(lines) if line.startswith(_SHARED))
    if "(" in lines[first]:
        raise RuntimeError(f"{driver}.py must import the wire format on one line")
    wire = (_FOLDER / "wire.py").read_text(encoding="utf-8")
    lines[first] = wire.replace(
        "from __future__ import annotations\n", ""
    )  # stands in the driver, and only first counts
    return "\n".join(lines)
