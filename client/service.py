"""Starting, finding and stopping the service of a home from the outside: what ``up``, ``down`` and ``demo`` do.

Nothing here supervises; the supervisor is another process, or ``client.supervisor`` called by ``up``.
"""

import http.client
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from client import place
from client.errors import StartError
from client.place import HOME_TAKEN, START_TIMEOUT_S, Server
from client.processes import terminate
from core.home import read_home_id
from core.settings import Settings, SettingsError

Say = Callable[[str], None]

_POLL_S = 0.1
_MARGIN_S = 30.0
_DOWN_TIMEOUT_S = 240.0


def settings_from_env() -> Settings:
    """The operator's settings; a variable that cannot be used becomes a :class:`StartError`."""
    try:
        return Settings.from_env()
    except SettingsError as error:
        raise StartError(str(error)) from None


def unusable_database(settings: Settings, error: Exception) -> StartError:
    """The error for a database that cannot be opened, told by the variable that says where it is."""
    why = f"the database cannot be opened ({str(error).splitlines()[0]})"
    if os.environ.get("DRIFTLINE_DATABASE_URL"):
        return StartError(
            f"DRIFTLINE_DATABASE_URL cannot be used: {why}", param="DRIFTLINE_DATABASE_URL", code="database"
        )
    return StartError(
        f"DRIFTLINE_HOME {settings.home} cannot be used: {why}",
        param="DRIFTLINE_HOME",
        hint="put driftline.db back from a backup, or name another home",
        code="database",
    )


def child_environment() -> dict[str, str]:
    """Environment of a program of this package, found in a plain checkout too."""
    return {**os.environ, "PYTHONPATH": place.python_path()}


def find(home: Path) -> Server | None:
    """The running service of ``home``: its supervisor holds the lock, lives, and its own api answers. None otherwise."""
    server = place.read_server(home)
    if server is None or not place.is_supervised(home) or not server.supervisor.alive:
        return None
    return server if server.ready and _serves(server.url, home) else None


def up_foreground(settings: Settings, say: Say) -> Server | None:
    """Run the service here until Ctrl-C; a service that already runs is returned at once instead."""
    running = _running_or_starting(settings.home)
    if running is not None:
        return running
    try:
        from client.supervisor import supervise  # brings the database's libraries

        supervise(settings, say)
    except place.HomeTakenError:
        return _await_ready(settings.home, None)
    return None


def up_background(settings: Settings, say: Say) -> tuple[Server, bool]:
    """The service's place, and whether this call started it. Raises :class:`StartError`."""
    running = _running_or_starting(settings.home)
    if running is not None:
        return running, False
    log = place.log_dir(settings.home) / "supervisor.log"
    with place.usable(settings.home):
        log.parent.mkdir(parents=True, exist_ok=True)
        opened = log.open("ab")
    say(f"starting Driftline in {settings.home}")
    with opened as output:
        output.seek(0, os.SEEK_END)
        begin = output.tell()
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "client.supervisor"],
            env=child_environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return _await_ready(settings.home, process, log, begin), True


def down(home: Path, say: Say) -> bool:
    """Stop the service of ``home`` and what a killed supervisor left; whether anything was running."""
    server = place.read_server(home)
    if server is None:
        if place.is_supervised(home):
            raise StartError("a supervisor is just starting or ending here; try again in a moment")
        return False
    supervised = server.supervisor.alive
    if supervised:
        say("stopping; a run in progress writes a checkpoint and waits in the queue")
        if not terminate(server.supervisor, _DOWN_TIMEOUT_S):
            raise StartError(
                f"the supervisor (pid {server.supervisor.pid}) still waits for its worker after {_DOWN_TIMEOUT_S:.0f} s",
                hint="run `driftline down` once more to hurry it",
            )
    left = _stop_leftovers(server)
    if place.read_server(home) == server:
        place.forget_server(home)
    return supervised or left


def _stop_leftovers(server: Server) -> bool:
    """A killed supervisor leaves its broker, and for a moment the others; stop them in order, by pid and start time."""
    found = False
    for name in ("worker", "api", "broker"):
        process = server.children.get(name)
        if process is not None and process.alive:
            found = True
            terminate(process, _DOWN_TIMEOUT_S)
    return found


def _running_or_starting(home: Path) -> Server | None:
    return _await_ready(home, None) if place.is_supervised(home) else None


def _await_ready(
    home: Path, process: "subprocess.Popen[bytes] | None", log: Path | None = None, begin: int = 0
) -> Server:
    """Wait until the home's service is ready; ``process`` is the supervisor that was started for it, if any."""
    pause = threading.Event()
    deadline = time.monotonic() + START_TIMEOUT_S + _MARGIN_S
    while time.monotonic() < deadline:
        server = find(home)
        if server is not None:
            return server
        status = process.poll() if process else None
        if status == HOME_TAKEN:
            process = None  # somebody else was faster; wait for theirs
        elif status is not None:
            raise StartError(_why(log, begin) or "the supervisor ended", hint=f"its log is {log}")
        elif process is None and not place.is_supervised(home):
            raise StartError("the service that was starting here ended", hint=f"look into {place.log_dir(home)}")
        pause.wait(_POLL_S)
    raise StartError("the service does not become ready", hint=f"look into {place.log_dir(home)}")


def _why(log: Path | None, begin: int) -> str:
    if log is None:
        return ""
    with log.open("rb") as written:
        written.seek(begin)
        lines = written.read().decode(errors="replace").splitlines()
    return "\n".join(lines[-20:])


def _serves(url: str, home: Path) -> bool:
    """Whether the api of ``home`` answers at ``url``, and not another home's that took the port meanwhile."""
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=5.0)
    try:
        connection.request("GET", "/healthz")
        body = json.loads(connection.getresponse().read())
    except (OSError, http.client.HTTPException, ValueError):
        return False
    finally:
        connection.close()
    known = read_home_id(home)
    return known is not None and isinstance(body, dict) and body.get("home_id") == known
