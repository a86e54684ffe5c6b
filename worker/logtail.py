"""The last lines of a runner's log, for error reports. It never reads more than the end of the file."""

import os
from pathlib import Path

_MAX_BYTES = 16_384


def log_tail(path: Path, lines: int = 40) -> str:
    """Return the last ``lines`` lines of the file at ``path``; an empty text when it does not exist."""
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            start = max(0, file.tell() - _MAX_BYTES)
            file.seek(start)
            data = file.read()
    except FileNotFoundError:
        return ""
    if start:
        # The first line is cut, perhaps inside a character.
        data = data.partition(b"\n")[2]
    return "\n".join(data.decode(errors="replace").splitlines()[-lines:])
