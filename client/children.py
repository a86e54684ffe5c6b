"""The processes behind ``driftline up``: how each is started, how one sees that it ended, how it is stopped.

A child is watched through a pidfd, which tells of the end at once and can never mean another process. When to start one
again is the supervisor's business. Needs Linux 5.3 or newer.
"""

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from client import place
from client.processes import is_running
from core.settings import Settings
from worker.embedded import EmbeddedValkey, EmbeddedValkeyError
from worker.launch import settings_environment, start_worker

PORT_TRIES = 100
_TAIL_LINES = 12
_TAIL_BYTES = 16 * 1024

Popen = subprocess.Popen[bytes]


class Child(Protocol):
    """One process of the service. ``stop`` waits for its end, at most ``grace_s`` politely, and may be called at any time."""

    @property
    def name(self) -> str: ...
    @property
    def log_file(self) -> Path: ...
    @property
    def exit_status(self) -> int | None:
        """How the last process ended; None while it runs, and where it cannot be known."""
        ...

    def start(self) -> int:
        """Start it and return its pid."""
        ...

    def stop(self, grace_s: float) -> None: ...


class Program:
    """A child that is a program of this package; ``spawn`` starts it with its output going to ``log_file``."""

    def __init__(self, name: str, log_file: Path, spawn: Callable[[Path], Popen]) -> None:
        self.name = name
        self.log_file = log_file
        self._spawn = spawn
        self._process: Popen | None = None

    @property
    def exit_status(self) -> int | None:
        """Exit status of the last process, negative for a signal; None while it runs."""
        return self._process.poll() if self._process else None

    def start(self) -> int:
        """Start it and return its pid."""
        self.log_file.parent.mkdir(parents=True, exist_ok=True)
        self._process = self._spawn(self.log_file)
        return self._process.pid

    def stop(self, grace_s: float) -> None:
        """SIGTERM, and SIGKILL when it has not ended after ``grace_s`` seconds."""
        process = self._process
        if process is None or process.poll() is not None:
            return
        process.terminate()
        try:
            process.wait(grace_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class Broker:
    """The embedded Valkey. It outlives a supervisor that is killed; the next one adopts it."""

    name = "broker"

    def __init__(self, home: Path, port: int) -> None:
        self._home = home
        self.port = port
        self._server = EmbeddedValkey(home, port)
        self.log_file = self._server.log_file

    @property
    def exit_status(self) -> int | None:
        """Not known: it may be another supervisor's child."""
        return None

    def start(self) -> int:
        """Start it, or adopt one that already serves this home; raises EmbeddedValkeyError."""
        if self._server.pid is None or not is_running(self._server.pid):
            self._server = EmbeddedValkey(self._home, self.port)
            self._server.start()
        assert self._server.pid is not None
        return self._server.pid

    def stop(self, grace_s: float) -> None:
        """Ask it to save and end; its own patience holds."""
        self._server.stop()


def api_program(settings: Callable[[], Settings], log_file: Path) -> Program:
    """The api; ``settings`` is asked at every start, since the port may have to change."""

    def spawn(log: Path) -> Popen:
        command = [sys.executable, "-m", "client.tether", str(os.getpid()), sys.executable, "-m", "api"]
        with log.open("ab") as output:
            return subprocess.Popen(  # noqa: S603 - our own program
                command,
                env={**os.environ, **settings_environment(settings()), "PYTHONPATH": place.python_path()},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    return Program("api", log_file, spawn)


def worker_program(settings: Settings, log_file: Path) -> Program:
    """The one worker."""
    return Program("worker", log_file, lambda log: start_worker(settings, log))


def find_broker(home: Path, ports: list[int]) -> Broker:
    """The broker on the first of ``ports`` that is free or already serves this home, started."""
    refusal: EmbeddedValkeyError | None = None
    for port in ports:
        broker = Broker(home, port)
        was_free = port_is_free("127.0.0.1", port)
        try:
            broker.start()
        except EmbeddedValkeyError as error:
            if was_free:
                raise
            refusal = error
            continue
        return broker
    raise refusal or EmbeddedValkeyError("no port to try for the broker")


def port_is_free(host: str, port: int) -> bool:
    """Whether a server could listen there now."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def free_port(host: str, first: int) -> int | None:
    """The first free port from ``first`` on, None when a hundred in a row are taken."""
    candidates = range(first, min(first + PORT_TRIES, 2**16))
    return next((port for port in candidates if port_is_free(host, port)), None)


def log_tail(path: Path) -> str:
    """The last lines of a log, for an error message."""
    try:
        with path.open("rb") as log:
            log.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            text = log.read().decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-_TAIL_LINES:])
