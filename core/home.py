"""The random name of a home folder, by which a service that answers on a port is told from another home's.

Standard library only, since the api makes it and the command line reads it. It is no secret and proves nothing to a stranger:
it only keeps a stale address from being taken for this home's service.
"""

import contextlib
import os
import secrets
from pathlib import Path

_BYTES = 16


def home_id(home: Path) -> str:
    """The id of ``home``, made at the first call; any number of processes may ask at once and get the same one."""
    known = read_home_id(home)
    if known is not None:
        return known
    home.mkdir(parents=True, exist_ok=True)
    aside = home / f".home_id.{os.getpid()}.{secrets.token_hex(4)}"
    aside.write_text(secrets.token_hex(_BYTES) + "\n")
    try:
        # A link is made whole or not at all, and never over a file that another process made meanwhile.
        with contextlib.suppress(FileExistsError):
            os.link(aside, _file(home))
    finally:
        aside.unlink()
    return _file(home).read_text().strip()


def read_home_id(home: Path) -> str | None:
    """The id of ``home``, None when no service ever started there."""
    try:
        return _file(home).read_text().strip()
    except OSError:
        return None


def _file(home: Path) -> Path:
    return home / "home_id"
