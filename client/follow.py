"""Following one run by asking the service again and again: what is new since the last time, until the run is final.

It asks, and knows nothing of how it is shown. A service that is silent for a while (its api is being restarted) is waited
for; a run that goes back behind a checkpoint has its steps told again.
"""

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from client.api import DriftlineClient, Json
from client.errors import NotReachable, ServiceFailed

FINAL = frozenset({"succeeded", "damage_stopped", "failed", "cancelled"})
OUTCOMES = {"succeeded": 0, "failed": 2, "damage_stopped": 3, "cancelled": 4}
LIVE_KEYS = ("reward", "heldout/accuracy", "loss", "kl", "completions/mean_length", "step_time")
PATIENCE_S = 180.0
POLL_S = 1.0
_EVENT_PAGE = 100


@dataclass(frozen=True)
class Step:
    """A finished step: when its values were stored, and the values by curve."""

    number: int
    at: str
    values: dict[str, float | None]


@dataclass(frozen=True)
class News:
    """The run as it is now, and what is new: finished steps with their values, looks, events. ``silent_s``: no answer since."""

    run: Json
    steps: list[Step] = field(default_factory=list)
    looks: list[Json] = field(default_factory=list)
    events: list[Json] = field(default_factory=list)
    silent_s: float = 0.0

    @property
    def final(self) -> bool:
        """Whether the run has its outcome."""
        return self.run["state"] in FINAL


class Follower:
    """Remembers what was told already."""

    def __init__(self, client: DriftlineClient, run_id: str) -> None:
        self._client = client
        self._run_id = run_id
        self._cursor = 0
        self._step = -1
        self._origin: tuple[int, int | None] | None = None
        self._looks: set[str] = set()

    def ask(self) -> News:
        """What is new. The run is asked for first, so that a final one is told with everything that came before."""
        run = self._client.run(self._run_id)
        self._go_back(run)
        events = self._events()
        looks = self._new_looks() if any(event["type"] == "look" for event in events) else []
        return News(run, self._new_steps(run), looks, events)

    def _go_back(self, run: Json) -> None:
        """A new attempt repeats the steps behind its checkpoint."""
        attempt = run["attempt"]
        if attempt is None:
            return
        origin = (attempt["number"], attempt["resumed_from_step"])
        if self._origin is not None and origin != self._origin and origin[1] is not None:
            self._step = min(self._step, origin[1])
        self._origin = origin

    def _events(self) -> list[Json]:
        found: list[Json] = []
        while True:
            page = self._client.events(self._run_id, after=self._cursor, limit=_EVENT_PAGE)
            found += page["data"]
            self._cursor = int(page["next"])
            if not page["has_more"]:
                return found

    def _new_looks(self) -> list[Json]:
        fresh = [look for look in self._client.looks(self._run_id) if look["id"] not in self._looks]
        self._looks |= {look["id"] for look in fresh}
        return fresh

    def _new_steps(self, run: Json) -> list[Step]:
        if run["kind"] != "train" or (run["step"] or 0) <= self._step:
            return []
        answer = self._client.curves(self._run_id, keys=list(LIVE_KEYS), from_step=self._step + 1)
        found: dict[int, Step] = {}
        for key, curve in answer["curves"].items():
            for number, value, at, *_ in curve["points"]:
                found.setdefault(number, Step(number, at, {})).values[key] = value
        self._step = max([self._step, *found])
        return [found[number] for number in sorted(found)]


def follow(client: DriftlineClient, run_id: str, *, patience_s: float = PATIENCE_S) -> Iterator[News]:
    """News of the run about once a second until it is final. Raises :class:`NotReachable` after ``patience_s`` of silence."""
    follower = Follower(client, run_id)
    pause = threading.Event()
    news: News | None = None
    silent_since: float | None = None
    while news is None or not news.final:
        try:
            news = follower.ask()
            silent_since = None
            yield news
        except (NotReachable, ServiceFailed) as error:
            silent_since = silent_since or time.monotonic()
            silent_s = time.monotonic() - silent_since
            if news is None or silent_s > patience_s:
                raise NotReachable(
                    f"{error.message}; whether run {run_id} goes on cannot be seen from here",
                    hint=f"once the service is up: driftline show {run_id} --follow",
                ) from error
            yield News(news.run, silent_s=silent_s)
        if not news.final:
            pause.wait(POLL_S)
