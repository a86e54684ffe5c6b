"""Showing a run that is being followed: JSON lines for programs, plain lines for files, a live view for a terminal.

All three take the same news and decide nothing. The live view prints the same lines as the plain one above a status block.
"""

import json
import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

from client import words
from client.api import Json
from client.follow import News, Step

if TYPE_CHECKING:
    from rich.console import RenderableType

_SILENT_AFTER_S = 5.0
_COUNTING_S = 20.0


class View(Protocol):
    """Shows news until it is closed."""

    def show(self, news: News) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None: ...


def view_for(*, as_json: bool) -> View:
    """The view that fits standard output."""
    if as_json:
        return JsonView()
    return LiveView() if sys.stdout.isatty() else PlainView()


class _Quiet:
    """A view that needs no closing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Nothing to close."""


class JsonView(_Quiet):
    """One JSON object a line: ``run`` when its state or progress changed, ``event``, ``step``, ``look``, ``silence``."""

    def __init__(self) -> None:
        self._last: Any = None

    def show(self, news: News) -> None:
        """Write what is new."""
        if news.silent_s:
            emit({"type": "silence", "seconds": round(news.silent_s, 1)})
            return
        for event in news.events:
            emit({"type": "event", "event": event})
        for step in news.steps:
            emit({"type": "step", "run_id": news.run["id"], "step": step.number, "at": step.at, "values": step.values})
        for look in news.looks:
            emit({"type": "look", "look": look})
        status = {
            name: news.run[name] for name in ("id", "state", "progress", "step", "queue", "eta", "outcome_reason")
        }
        if self._key(status) != self._last:
            self._last = self._key(status)
            emit({"type": "run"} | status)

    @staticmethod
    def _key(status: Json) -> Any:
        return {name: value for name, value in status.items() if name != "eta"}


def emit(document: Json) -> None:
    """Write one JSON line at once."""
    sys.stdout.write(json.dumps(document, separators=(",", ":")) + "\n")
    sys.stdout.flush()


class Lines:
    """Turns news into the lines that a person wants to read once; remembers what was said last of the run's state."""

    def __init__(self) -> None:
        self._said: tuple[str, str] = ("", "")
        self._said_at = 0.0
        self._silent = False

    def of(self, news: News) -> list[tuple[str, str]]:
        """Pairs of a local time of day and a line."""
        if news.silent_s:
            return self._silence(news)
        self._silent = False
        told: list[tuple[str, str]] = []
        for event in news.events:
            line = event_line(event)
            if line:
                told.append((event["at"], line))
        told += [(step.at, step_line(news.run, step)) for step in news.steps]
        told += [(look["created_at"], look_line(look)) for look in news.looks]
        told.sort(key=lambda pair: pair[0])
        lines = [(words.clock(at), line) for at, line in told]
        if not news.final and self._worth_saying(news.run):
            lines.append((time.strftime("%H:%M:%S"), " ".join(self._said).rstrip()))
        return lines

    def _worth_saying(self, run: Json) -> bool:
        """A new state or phase is said at once, counting within one now and then."""
        status = status_words(run)
        if status == self._said:
            return False
        if status[0] == self._said[0] and time.monotonic() - self._said_at < _COUNTING_S:
            return False
        self._said, self._said_at = status, time.monotonic()
        return True

    def _silence(self, news: News) -> list[tuple[str, str]]:
        if self._silent or news.silent_s < _SILENT_AFTER_S:
            return []
        self._silent = True
        return [(time.strftime("%H:%M:%S"), "the service does not answer; waiting for it (the run itself may go on)")]


class PlainView(_Quiet):
    """Lines with a time of day, for a file or a pipe."""

    def __init__(self) -> None:
        self._lines = Lines()

    def show(self, news: News) -> None:
        """Print the new lines."""
        for at, line in self._lines.of(news):
            print(f"{at}  {line}", flush=True)


class LiveView:
    """Lines that scroll, and below them a block that is drawn again: phase, bar, last values, ETA. Terminals only."""

    def __init__(self) -> None:
        from rich.live import Live

        self._lines = Lines()
        self._values: dict[str, float | None] = {}
        self._live = Live(refresh_per_second=4, transient=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._live.stop()

    def show(self, news: News) -> None:
        """Print the new lines above the block, and draw the block."""
        for at, line in self._lines.of(news):
            self._live.console.print(f"[dim]{at}[/dim]  {_escaped(line)}", highlight=False, soft_wrap=True)
        for step in news.steps:
            self._values |= {name: value for name, value in step.values.items() if value is not None}
        for look in news.looks:
            self._values["heldout/accuracy"] = look["accuracy"]
        self._live.update(_block(news, self._values), refresh=True)


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(text)


def _block(news: News, values: dict[str, float | None]) -> "RenderableType":
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.rule import Rule
    from rich.table import Table
    from rich.text import Text

    run = news.run
    progress = run["progress"]
    done, total = progress["done"] or 0, progress["total"] or 0
    bar = Table.grid(padding=(0, 2))
    phase = words.state(progress["phase"] or run["state"]) if run["state"] == "running" else words.state(run["state"])
    told = f"{done:g}/{total:g} {progress['unit'] or ''}" if total else ""
    bar.add_row(Text(phase, style="bold"), ProgressBar(total=total or 1, completed=done, width=36), told, _eta(run))
    numbers = Text("  ".join(_values(values)))
    silent = (
        [Text("the service does not answer; waiting for it", style="yellow")] if news.silent_s > _SILENT_AFTER_S else []
    )
    hint = Text(f"Ctrl-C detaches; the run goes on (driftline show {run['id']} --follow)", style="dim")
    return Group(Rule(f"{run['name'] or run['kind']}  {run['id']}", align="left"), bar, numbers, *silent, hint)


def _values(values: dict[str, float | None]) -> list[str]:
    told = {
        "reward": f"reward {words.number(values.get('reward'))}",
        "heldout/accuracy": f"held-out {words.share(values.get('heldout/accuracy'))}",
        "loss": f"loss {words.number(values.get('loss'))}",
        "kl": f"kl {words.number(values.get('kl'))}",
        "step_time": f"{words.duration(values.get('step_time'))} a step",
    }
    return [text for key, text in told.items() if values.get(key) is not None]


def _eta(run: Json) -> str:
    return f"about {words.duration(run['eta']['seconds'])} left" if run["eta"] else ""


def status_words(run: Json) -> tuple[str, str]:
    """The run's state or phase in words, and how far it has counted within it (steps have lines of their own)."""
    match run["state"]:
        case "queued":
            return f"queued: {run['queue']['why']}" if run["queue"] else "queued", ""
        case "running":
            progress = run["progress"]
            counted = progress["total"] and progress["done"] and progress["unit"] != "steps"
            count = f"{progress['done']:g}/{progress['total']:g} {progress['unit'] or ''}" if counted else ""
            return words.state(progress["phase"] or "starting"), count
        case "paused":
            return f"paused; `driftline resume {run['id']}` continues it", ""
        case other:
            return words.state(other), ""


def step_line(run: Json, done: Step) -> str:
    """One finished step. Step 0 is the base model."""
    step, values = done.number, done.values
    total = run["recipe"].get("max_steps")
    if step == 0:
        accuracy = values.get("heldout/accuracy")
        return "base model" if accuracy is None else f"base model: held-out accuracy {words.share(accuracy)}"
    place = f"step {step:>{len(str(total))}}/{total}" if total else f"step {step}"
    names = {"reward": "reward", "loss": "loss", "kl": "kl"}
    told = [f"{name} {words.number(values.get(key)):<9}" for key, name in names.items() if key in values]
    length = values.get("completions/mean_length")
    if length is not None:
        told.append(f"{length:.0f} tokens")
    if values.get("step_time") is not None:
        told.append(words.duration(values["step_time"]))
    if run["eta"] and step == run["step"]:
        told.append(_eta(run))
    return "  ".join([place, *told])


def look_line(look: Json) -> str:
    """One look: accuracy, flips, and what the rule made of it."""
    line = f"look {look['number']} at step {look['step']}: accuracy {words.share(look['accuracy'])}"
    line += f" on {look['n']} items, {words.count(look['lost'])} lost, {words.count(look['gained'])} gained"
    if look["statistic"] is not None and look["threshold"] is not None:
        line += f", statistic {words.number(look['statistic'])} (decides at {words.number(look['threshold'])})"
    return line + (f": {words.state(look['state'])}" if look["state"] else "")


def event_line(event: Json) -> str | None:
    """An event in words; None for those that the status, a step or a look tells better."""
    payload = event["payload"] or {}
    line = None
    match event["type"]:
        case "attempt_claimed":
            line = f"attempt {event['attempt']} taken by worker {payload.get('worker_id')}"
        case "prespec_frozen":
            line = f"prespecification frozen, hash {str(payload.get('hash'))[:12]}"
        case "checkpoint":
            line = f"checkpoint of step {payload.get('step')}"
        case "data_warning":
            line = f"warning: {payload.get('message')}"
        case "update_skipped":
            line = f"update skipped: {payload.get('reason', 'its gradient is not finite')}"
        case "state" if payload.get("to") == "queued" and payload.get("reason"):
            line = f"back in the queue: {payload['reason']}"
    return line
