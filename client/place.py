"""Where the service of a home folder is: the lock that its supervisor holds, and ``server.json`` which says how to reach it.

Light on purpose, since every command reads it: standard library only. The lock is what proves that a supervisor lives; the
file may outlive it.
"""

import contextlib
import fcntl
import json
import os
import threading
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from client.errors import ClientError, NotReachable, StartError
from client.processes import Process

ROOT = Path(__file__).resolve().parents[1]
START_TIMEOUT_S = 180.0
HOME_TAKEN = 3
"""Exit status of a supervisor that found the lock held."""
DEFAULT_PORT = "8421"
_LOCK_TRIES = 20
_LOCK_PAUSE_S = 0.05


@dataclass(frozen=True)
class Server:
    """What ``server.json`` says of a running service. ``children`` are the api, the worker and the broker by name."""

    url: str
    ready: bool
    supervisor: Process
    started_at: float
    broker_port: int | None = None
    children: Mapping[str, Process] = field(default_factory=dict)

    def document(self, home: Path) -> dict[str, Any]:
        """The file's content; ``pid`` stands in front for people who read it."""
        return {"pid": self.supervisor.pid, "home": str(home)} | asdict(self)


def home_of(env: Mapping[str, str] = os.environ) -> Path:
    """The home folder, as ``core.settings`` reads it."""
    return Path(env.get("DRIFTLINE_HOME") or ".driftline").expanduser().resolve()


def service_url(env: Mapping[str, str] = os.environ) -> str:
    """``DRIFTLINE_URL``, else what the home folder's ``server.json`` says; without any home, this machine's default port.

    A home where nothing runs raises :class:`client.errors.NotReachable`: on the default port another home's service may answer.
    """
    named = env.get("DRIFTLINE_URL", "")
    if named:
        return named.rstrip("/")
    home = home_of(env)
    server = read_server(home)
    if server is not None:
        return server.url
    if env.get("DRIFTLINE_HOME") or home.exists():
        raise NotReachable(
            f"no service runs in {home}; start it with `driftline up`",
            hint="DRIFTLINE_HOME names another home, DRIFTLINE_URL a service elsewhere",
            code="not_reachable",
        )
    return f"http://127.0.0.1:{_port(env)}"


def home_behind(env: Mapping[str, str] = os.environ) -> Path | None:
    """The home whose ``server.json`` :func:`service_url` goes by; None when something else gives the address."""
    home = home_of(env)
    return home if not env.get("DRIFTLINE_URL") and read_server(home) is not None else None


def _port(env: Mapping[str, str]) -> str:
    port = env.get("DRIFTLINE_PORT") or DEFAULT_PORT
    if not (port.isascii() and port.isdecimal() and 0 < int(port) < 65536):
        raise ClientError(f"DRIFTLINE_PORT is {port!r}, but it must be from 1 to 65535", param="DRIFTLINE_PORT")
    return port


@contextlib.contextmanager
def usable(home: Path) -> Iterator[None]:
    """Turn what the file system refuses about the home inside this block into a :class:`client.errors.StartError`."""
    try:
        yield
    except OSError as error:
        raise StartError(
            f"DRIFTLINE_HOME {home} cannot be used: {error.strerror or error} ({error.filename})",
            param="DRIFTLINE_HOME",
            hint="name a folder that can be made and written",
            code="unusable_home",
        ) from error


def server_file(home: Path) -> Path:
    """The file that says where the service is."""
    return home / "server.json"


def log_dir(home: Path) -> Path:
    """Folder of the logs of the supervisor and its children."""
    return home / "logs"


def read_server(home: Path) -> Server | None:
    """What the file says, None when it is missing or unreadable."""
    try:
        raw = json.loads(server_file(home).read_text())
        return Server(
            url=str(raw["url"]),
            ready=bool(raw["ready"]),
            supervisor=Process(**raw["supervisor"]),
            started_at=float(raw["started_at"]),
            broker_port=raw["broker_port"],
            children={name: Process(**value) for name, value in raw["children"].items()},
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def write_server(home: Path, server: Server) -> None:
    """Write the file beside its place and rename it, so that no reader sees half of it."""
    aside = home / f".server.json.{os.getpid()}"
    aside.write_text(json.dumps(server.document(home), indent=2) + "\n")
    aside.replace(server_file(home))


def forget_server(home: Path) -> None:
    """Take the file away."""
    server_file(home).unlink(missing_ok=True)


def python_path() -> str:
    """``PYTHONPATH`` with this package's root in front, for children of a plain checkout."""
    return os.pathsep.join(part for part in (str(ROOT), os.environ.get("PYTHONPATH", "")) if part)


class HomeTakenError(RuntimeError):
    """Another supervisor holds this home's lock."""


@contextlib.contextmanager
def home_lock(home: Path) -> Iterator[None]:
    """Hold the lock that keeps two supervisors off one home; the kernel lets go of it when its holder dies."""
    pause = threading.Event()
    with usable(home):
        handle = _lock_file(home).open("a")
    with handle:
        # Somebody who only asks (`is_supervised`) holds it for an instant, so one refusal proves nothing.
        for _ in range(_LOCK_TRIES):
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                pause.wait(_LOCK_PAUSE_S)
        else:
            raise HomeTakenError(f"another supervisor holds {_lock_file(home)}")
        yield


def is_supervised(home: Path) -> bool:
    """Whether a living supervisor holds this home's lock."""
    with usable(home):
        try:
            with _lock_file(home).open("r") as handle:
                fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
    return False


def _lock_file(home: Path) -> Path:
    return home / "locks" / "supervisor.lock"
