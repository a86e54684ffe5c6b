"""The supervisor of ``driftline up``: starts broker, api and worker of one home, keeps them alive, and stops them in order.

It does no work of the service itself, and holds no state that a restart would lose. It waits on the ends of its children
and on signals; only while the service starts does it ask ``/readyz`` again and again.
"""

import contextlib
import http.client
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from types import FrameType
from urllib.parse import urlsplit

from sqlalchemy.exc import SQLAlchemyError

from client import children, place
from client.children import Child
from client.errors import StartError
from client.place import Server
from client.processes import Process, ended
from client.service import unusable_database
from core.settings import Settings, SettingsError
from core.store.errors import SchemaMismatch
from core.store.migrations_api import migrate
from worker.embedded import EmbeddedValkeyError

Say = Callable[[str], None]

_READY_PAUSE_S = 0.25
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0
_STEADY_S = 60.0
_START_DEATHS = 4
_USAGE_ERROR = 2
_WORKER_GRACE_S = 180.0  # a worker lets its runner reach a checkpoint, for two minutes at most
_GRACE_S = 15.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@dataclass
class Unit:
    """One child and what is known of its present process."""

    child: Child
    process: Process | None = None
    descriptor: int = -1
    started: float = 0.0
    deaths: int = 0
    due: float = 0.0

    def start(self) -> None:
        """Start it; raises whatever its start raises."""
        pid = self.child.start()
        self.descriptor = os.pidfd_open(pid)
        self.started = time.monotonic()
        with contextlib.suppress(ProcessLookupError):  # it ended at once; the descriptor will say so
            self.process = Process.of(pid)

    def buried(self) -> float:
        """Note the end of the process; return the seconds to wait before the next start."""
        os.close(self.descriptor)
        self.descriptor, self.process = -1, None
        self.deaths = 1 if time.monotonic() - self.started > _STEADY_S else self.deaths + 1
        return self.postponed()

    def postponed(self) -> float:
        """Set the moment of the next start, later after every death in a row."""
        pause = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** max(0, self.deaths - 1))
        self.due = time.monotonic() + pause
        return pause


class StopSignals:
    """Turns SIGTERM, SIGINT and SIGHUP into a descriptor to wait on; ``count`` is how many came."""

    def __init__(self) -> None:
        self.count = 0
        self.descriptor, self._write = os.pipe()
        os.set_blocking(self.descriptor, False)
        os.set_blocking(self._write, False)
        self._before = {number: signal.signal(number, self._note) for number in _SIGNALS}
        self._wakeup = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self.count += 1

    def drain(self) -> None:
        """Empty the pipe."""
        with contextlib.suppress(BlockingIOError):
            while os.read(self.descriptor, 512):
                pass

    def close(self) -> None:
        """Put the former handlers back."""
        signal.set_wakeup_fd(self._wakeup)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.close(self.descriptor)
        os.close(self._write)


class Supervisor:
    """One service of one home. Make it while holding the home's lock (:func:`supervise`)."""

    def __init__(self, settings: Settings, broker: children.Broker | None, say: Say) -> None:
        self._settings = settings
        self._say = say
        self._began = time.time()
        self._ready = False
        logs = place.log_dir(settings.home)
        units = [
            children.api_program(self._api_settings, logs / "api.log"),
            children.worker_program(settings, logs / "worker.log"),
        ]
        self._broker = broker
        self._units = [Unit(child) for child in ([broker] if broker else []) + units]

    def run(self, signals: StopSignals) -> None:
        """Start, serve until a signal comes, stop. Raises :class:`StartError` when the service does not become ready."""
        try:
            for unit in self._units:
                unit.start()
            self._publish()
            if self._watch_until_ready(signals):
                self._say(f"Driftline is ready at {self.url}  (home {self._settings.home})")
                self._watch(signals, lambda: False, float("inf"))
        finally:
            self._stop(signals)

    @property
    def url(self) -> str:
        """Where the api is; a service on every interface is reached here by loopback."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(self._settings.host, self._settings.host)  # noqa: S104
        return f"http://[{host}]:{self._settings.port}" if ":" in host else f"http://{host}:{self._settings.port}"

    def _api_settings(self) -> Settings:
        """The settings of the next api process: another port when somebody took ours meanwhile."""
        port = children.free_port(self._settings.host, self._settings.port)
        if port is None:
            raise StartError(
                f"no free port from {self._settings.port} on", param="DRIFTLINE_PORT", hint="set it to a free port"
            )
        if port != self._settings.port:
            self._say(f"port {self._settings.port} is taken, so the api listens on {port}")
            self._settings = replace(self._settings, port=port)
        return self._settings

    def _publish(self) -> None:
        place.write_server(
            self._settings.home,
            Server(
                url=self.url,
                ready=self._ready,
                supervisor=Process.of(os.getpid()),
                started_at=self._began,
                broker_port=self._broker.port if self._broker else None,
                children={unit.child.name: unit.process for unit in self._units if unit.process},
            ),
        )

    def _watch_until_ready(self, signals: StopSignals) -> bool:
        """Whether the service became ready; False when a signal came first."""
        deadline = time.monotonic() + place.START_TIMEOUT_S
        answer = self._watch(signals, lambda: readiness(self.url) == "ready", deadline)
        if answer is None:
            raise StartError(
                f"the service did not become ready within {place.START_TIMEOUT_S:.0f} s: {readiness(self.url)}",
                hint=f"look into {place.log_dir(self._settings.home)}",
            )
        if answer:
            self._ready = True
            self._publish()
        return answer

    def _watch(self, signals: StopSignals, done: Callable[[], bool], deadline: float) -> bool | None:
        """Keep the children alive until ``done()`` (True), a signal (False) or the deadline (None)."""
        while not signals.count:
            for unit in self._units:
                self._tend(unit)
            if done():
                return True
            if time.monotonic() > deadline:
                return None
            self._wait(signals, polling=deadline < float("inf"))
        return False

    def _tend(self, unit: Unit) -> None:
        """Bury a child that ended; start one whose time has come."""
        if unit.descriptor >= 0 and ended(unit.descriptor):
            status = unit.child.exit_status
            pause = unit.buried()
            self._refuse_hopeless(unit, status)
            self._say(f"the {unit.child.name} ended ({_status_words(status)}); it starts again in {pause:g} s")
        if unit.descriptor < 0 and time.monotonic() >= unit.due:
            try:
                unit.start()
            except (EmbeddedValkeyError, StartError, OSError) as error:
                unit.deaths += 1
                self._say(f"the {unit.child.name} cannot start: {error}; next try in {unit.postponed():g} s")
            else:
                self._say(f"the {unit.child.name} was started again")
            self._publish()

    def _refuse_hopeless(self, unit: Unit, status: int | None) -> None:
        """While the service starts for the first time, a child that keeps ending is an error to show, not to repeat."""
        if not self._ready and (status == _USAGE_ERROR or unit.deaths >= _START_DEATHS):
            raise StartError(
                f"the {unit.child.name} cannot start:\n{children.log_tail(unit.child.log_file)}",
                hint=f"its log is {unit.child.log_file}",
            )

    def _wait(self, signals: StopSignals, *, polling: bool) -> None:
        """Sleep until a child ends, a start is due or a signal comes."""
        poller = select.poll()
        poller.register(signals.descriptor, select.POLLIN)
        pauses = [_READY_PAUSE_S] if polling else []
        for unit in self._units:
            if unit.descriptor >= 0:
                poller.register(unit.descriptor, select.POLLIN)
            else:
                pauses.append(max(0.0, unit.due - time.monotonic()))
        # A moment more than asked, so that a start which is due is due indeed when this returns.
        poller.poll(min(pauses) * 1000 + 1 if pauses else None)
        signals.drain()

    def _stop(self, signals: StopSignals) -> None:
        """Stop the worker, then the api, then the broker: each still needs the ones behind it to end well."""
        if self._ready:
            self._say("stopping; a run in progress writes a checkpoint and waits in the queue (once more to hurry)")
        for unit in reversed(self._units):
            if unit.child.name == "worker":
                self._let_drain(unit, signals)
            unit.child.stop(_GRACE_S)
            if unit.descriptor >= 0:
                os.close(unit.descriptor)
                unit.descriptor = -1
        place.forget_server(self._settings.home)
        if self._ready:
            self._say("stopped")

    def _let_drain(self, unit: Unit, signals: StopSignals) -> None:
        """Ask the worker to end and wait for it; another signal ends the wait."""
        if unit.process is None or unit.descriptor < 0:
            return
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(unit.descriptor, signal.SIGTERM)
        asked = signals.count
        deadline = time.monotonic() + _WORKER_GRACE_S
        poller = select.poll()
        poller.register(unit.descriptor, select.POLLIN)
        poller.register(signals.descriptor, select.POLLIN)
        while signals.count == asked and not ended(unit.descriptor):
            left = deadline - time.monotonic()
            if left <= 0:
                return
            poller.poll(left * 1000)
            signals.drain()


def supervise(settings: Settings, say: Say) -> None:
    """Hold the home's lock, migrate, and run the service until a signal comes.

    Raises :class:`client.place.HomeTakenError` when another supervisor has this home, and :class:`StartError`.
    """
    with place.usable(settings.home):
        for folder in (settings.home, settings.locks_dir, place.log_dir(settings.home)):
            folder.mkdir(parents=True, exist_ok=True)
    # Children are started as `-m` programs: a folder `api` in the user's working directory must not be taken for ours.
    os.environ["PYTHONSAFEPATH"] = "1"
    with place.home_lock(settings.home), _signals() as signals:
        try:
            migrate(settings.database_url)
        except SchemaMismatch as error:
            raise StartError(str(error)) from error
        except (SQLAlchemyError, OSError, ValueError) as error:
            raise unusable_database(settings, error) from error
        try:
            settings, broker = _with_broker(settings)
        except EmbeddedValkeyError as error:
            raise StartError(str(error)) from error
        Supervisor(settings, broker, say).run(signals)


@contextlib.contextmanager
def _signals() -> Iterator[StopSignals]:
    signals = StopSignals()
    try:
        yield signals
    finally:
        signals.close()


def _with_broker(settings: Settings) -> tuple[Settings, children.Broker | None]:
    """Settings with the broker's address, and the embedded broker, or None when the operator runs one."""
    address = urlsplit(settings.broker_url)
    port = address.port or 6379
    named = bool(os.environ.get("DRIFTLINE_BROKER_URL"))
    if named and (address.hostname not in {"127.0.0.1", "localhost"} or address.scheme != "redis"):
        return settings, None
    if named:
        try:
            return settings, children.find_broker(settings.home, [port])
        except EmbeddedValkeyError:
            if children.port_is_free("127.0.0.1", port):
                raise
            return settings, None  # the operator's own broker answers there
    before = place.read_server(settings.home)
    recorded = [before.broker_port] if before and before.broker_port else []
    broker = children.find_broker(settings.home, [*recorded, *range(port, port + children.PORT_TRIES)])
    return replace(settings, broker_url=f"redis://127.0.0.1:{broker.port}/0"), broker


def readiness(url: str) -> str:
    """``ready``, or in words what is missing."""
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=5.0)
    try:
        connection.request("GET", "/readyz")
        answer = connection.getresponse()
        body = answer.read()
    except (OSError, http.client.HTTPException) as error:
        return f"the api does not answer ({error})"
    finally:
        connection.close()
    return "ready" if answer.status == 200 else _missing(body)


def _missing(body: bytes) -> str:
    import json

    try:
        parts = json.loads(body)["parts"]
        return "; ".join(f"{name}: {part['detail']}" for name, part in parts.items() if not part["ok"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return "the api is not ready"


def _status_words(status: int | None) -> str:
    if status is None:
        return "killed or gone"
    return f"signal {-status}" if status < 0 else f"exit status {status}"


def main() -> int:
    """``python -m client.supervisor``: the detached supervisor; what it says goes to its log."""

    def say(text: str) -> None:
        sys.stdout.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")
        sys.stdout.flush()

    try:
        supervise(Settings.from_env(), say)
    except place.HomeTakenError:
        return place.HOME_TAKEN
    except (StartError, SettingsError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
