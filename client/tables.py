"""Tables and documents for people: what ``list``, ``show``, ``curves``, ``looks`` and ``damage-stop`` print.

From answers of the service to rich's renderables, and nothing else. Only imported when a person reads.
"""

import io
import sys
from collections.abc import Iterable, Sequence

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from client import words
from client.api import Json

_COLOURS = {
    "succeeded": "green",
    "running": "cyan",
    "damage_stopped": "red",
    "failed": "red",
    "stopped": "red",
    "damaged": "red",
    "watch": "yellow",
    "paused": "yellow",
    "no_damage_shown": "green",
}
_PIPE_WIDTH = 160
_LABEL_WIDTH = 16
_FIRST_KEYS = (
    "reward",
    "heldout/accuracy",
    "heldout/delta",
    "loss",
    "kl",
    "entropy",
    "grad_norm",
    "completions/mean_length",
    "completions/clipped_ratio",
    "weights/changed_share",
)


def show(*parts: RenderableType) -> None:
    """Print parts one under another; into a pipe without colours, padding, or lines broken for a terminal that is not there."""
    if sys.stdout.isatty():
        out = Console(file=sys.stdout, highlight=False)
        for part in parts:
            out.print(part)
        return
    out = Console(file=io.StringIO(), width=_PIPE_WIDTH, highlight=False, color_system=None)
    with out.capture() as captured:
        for part in parts:
            out.print(part, soft_wrap=isinstance(part, Text))
    sys.stdout.write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))


def state(name: str) -> Text:
    """A state in its colour."""
    return Text(words.state(name), style=_COLOURS.get(name, ""))


def heading(text: str) -> Text:
    """A title over a part."""
    return Text(f"\n{text}", style="bold")


def grid(columns: Iterable[str], *, right: Sequence[str] = (), wrap: Sequence[str] = ()) -> Table:
    """A table with a quiet head; columns named in ``right`` hold numbers, those in ``wrap`` may break lines."""
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for name in columns:
        folds = name in wrap
        table.add_column(
            name,
            justify="right" if name in right else "left",
            no_wrap=not folds,
            overflow="fold" if folds else "ellipsis",
        )
    return table


def facts(pairs: Iterable[tuple[str, RenderableType | None]]) -> Table:
    """Label and value, one pair a line; pairs without a value are left out."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="dim", min_width=_LABEL_WIDTH, no_wrap=True)
    table.add_column(overflow="fold")
    for label, value in pairs:
        if value is not None and value != "":
            table.add_row(label, Text(value) if isinstance(value, str) else value)
    return table


def runs(rows: Sequence[Json]) -> RenderableType:
    """One run a line."""
    if not rows:
        return Text("no runs")
    table = grid(["id", "name", "kind", "state", "progress", "model", "created", "took"], right=["progress", "took"])
    for run in rows:
        took = words.between(run["started_at"], run["finished_at"])
        table.add_row(
            run["id"],
            run["name"] or words.NONE,
            run["kind"],
            state(run["state"]),
            _progress(run),
            run["model"] or words.NONE,
            words.moment(run["created_at"]),
            words.duration(took) if took is not None else words.NONE,
        )
    return table


def tokens(rows: Sequence[Json]) -> RenderableType:
    """One bearer token a line."""
    if not rows:
        return Text("no tokens; the service answers this machine only")
    table = grid(["name", "scope", "created", "last used", "revoked"], wrap=["name"])
    for row in rows:
        times = [words.moment(row[name]) for name in ("created_at", "last_used_at", "revoked_at")]
        table.add_row(row["name"], row["scope"], *times)
    return table


def _progress(run: Json) -> str:
    progress = run["progress"]
    if progress["total"]:
        return f"{progress['done'] or 0:g}/{progress['total']:g} {progress['unit'] or ''}".rstrip()
    return progress["phase"] or words.NONE


def run(document: Json, url: str) -> list[RenderableType]:
    """Everything about one run."""
    recipe = document["recipe"]
    took = words.between(document["started_at"], document["finished_at"])
    parts: list[RenderableType] = [
        Text.assemble(
            (document["name"] or document["kind"], "bold"), f"  {document['id']}  ", state(document["state"])
        ),
        facts(
            [
                ("outcome", document["outcome_reason"]),
                ("liveness", None if document["finished_at"] else _liveness(document["liveness"])),
                ("queue", f"place {document['queue']['position']}" if document["queue"] else None),
                ("progress", _progress(document)),
                ("phase", words.state(document["progress"]["phase"] or "") or None),
                ("about left", words.duration(document["eta"]["seconds"]) if document["eta"] else None),
                ("model", document["model"]),
                ("data", (recipe.get("data") or {}).get("dataset")),
                ("algorithm", (recipe.get("algorithm") or {}).get("name")),
                ("device", (document["device"] or {}).get("name")),
                ("created", words.moment(document["created_at"])),
                ("started", words.moment(document["started_at"]) if document["started_at"] else None),
                ("finished", words.moment(document["finished_at"]) if document["finished_at"] else None),
                ("took", words.duration(took) if took is not None else None),
                ("tags", ", ".join(document["tags"])),
                ("parent", _parent(document)),
                ("recipe hash", document["recipe_hash"]),
                ("run of family", str(document["run_of_family"]) if document["run_of_family"] else None),
                ("exploratory", "yes" if document["exploratory"] else None),
                ("page", url),
            ]
        ),
    ]
    if document["error"]:
        parts += error(document["error"])
    if document["attempts"]:
        parts += [heading("Attempts"), attempts(document["attempts"])]
    return parts


def _liveness(liveness: Json) -> str:
    return f"{liveness['state']}: {liveness['reason']}"


def _parent(document: Json) -> str | None:
    if document["parent_id"] is None:
        return None
    step = document["parent_step"]
    return f"{document['parent_id']} from step {step}" if step is not None else str(document["parent_id"])


def attempts(rows: Sequence[Json]) -> Table:
    """One attempt a line."""
    table = grid(["attempt", "state", "worker", "began", "ended", "from step", "why it ended"], wrap=["why it ended"])
    for row in rows:
        resumed = row["resumed_from_step"]
        table.add_row(
            str(row["number"]),
            words.state(row["state"]),
            row["worker_id"] or words.NONE,
            words.moment(row["started_at"]),
            words.moment(row["ended_at"]),
            words.NONE if resumed is None else str(resumed),
            row["end_reason"] or words.NONE,
        )
    return table


def error(failure: Json) -> list[RenderableType]:
    """Why a run failed, with the end of its log."""
    tail = failure["log_tail"]
    lines = tail if isinstance(tail, list) else (tail or "").splitlines()
    whose = {"user": "the recipe", "system": "the service or the machine"}.get(failure["category"] or "", "not known")
    parts: list[RenderableType] = [
        heading("Error"),
        facts([("what", words.plain(failure["message"])), ("code", failure["code"]), ("to mend in", whose)]),
    ]
    if lines:
        parts += [Text("end of the log", style="dim"), Text("\n".join(words.plain(str(line)) for line in lines[-15:]))]
    return parts


def curves(document: Json, *, every: bool = False) -> RenderableType:
    """First and last value and a small picture of each curve; the usual ones, or with ``every`` all."""
    found = document["curves"]
    chosen = [key for key in _FIRST_KEYS if key in found]
    chosen += [key for key in found if key not in chosen and (every or key.startswith("reward/"))]
    if not chosen:
        return Text("no curves yet")
    table = grid(["curve", "unit", "first", "last", "steps", "shape"], right=["first", "last", "steps"])
    for key in chosen:
        points = found[key]["points"]
        if points:
            values = [point[1] for point in points]
            table.add_row(
                key,
                found[key]["unit"],
                _point(points[0]),
                _point(points[-1]),
                f"{points[0][0]} to {points[-1][0]}",
                words.spark(values),
            )
    return table


def _point(point: Sequence[object]) -> str:
    value = point[1]
    return words.number(value) if isinstance(value, int | float) else str(point[3] if len(point) > 3 else words.NONE)


def looks(rows: Sequence[Json], flips: Json | None = None) -> RenderableType:
    """One look a line; ``flips`` maps a look's id to the ids of its lost and gained items, and adds lines for them."""
    if not rows:
        return Text("no looks yet")
    names = [
        "look",
        "step",
        "items",
        "accuracy",
        "95 % interval",
        "lost",
        "gained",
        "statistic",
        "decides at",
        "verdict",
    ]
    numbers = ["look", "step", "items", "accuracy", "lost", "gained", "statistic", "decides at"]
    table = grid(names, right=numbers)
    for row in rows:
        table.add_row(
            str(row["number"]),
            str(row["step"]),
            str(row["n"]),
            words.share(row["accuracy"]),
            words.interval(row["ci"]),
            words.count(row["lost"]),
            words.count(row["gained"]),
            words.number(row["statistic"]),
            words.number(row["threshold"]),
            state(row["state"]) if row["state"] else words.NONE,
        )
    if not flips:
        return table
    outer = Table.grid()
    outer.add_row(table)
    outer.add_row(_flips(rows, flips))
    return outer


def _flips(rows: Sequence[Json], flips: Json) -> Table:
    """Which items changed sides, look by look."""
    pairs: list[tuple[str, RenderableType | None]] = []
    for row in rows:
        sides = flips.get(row["id"]) or {}
        for side in ("lost", "gained"):
            if sides.get(side):
                pairs.append((f"  step {row['step']} {side}", ", ".join(sides[side])))
    return facts(pairs)


def damage(status: Json) -> list[RenderableType]:
    """The damage-stop status with its statement."""
    title = Text.assemble(("Damage stop  ", "bold"), state(status["state"]))
    return [title, Text(status["statement"]), facts(_damage_facts(status))]


def _damage_facts(status: Json) -> list[tuple[str, RenderableType | None]]:
    rule, base, current = status["rule"], status["base"], status["current"]
    kind = "confirmatory" if status["confirmatory"] else "exploratory"
    following = f", next at step {status['next_look_at_step']}" if status["next_look_at_step"] else ""
    decided = f"{words.moment(status['decided_at'])}, at step {status['decided_at_step']}"
    return [
        ("rule", f"{rule['rule']}, action {status['action']}" if rule else None),
        ("frozen", f"{words.moment(status['prespecified_at'])} ({status['clock']} clock)" if rule else None),
        ("kind", f"{kind}, prespecification {str(status['spec_hash'])[:12]}" if status["spec_hash"] else None),
        ("looks", f"{status['looks']}{following}"),
        ("base", _accuracy(base) if base else None),
        ("current", f"{_accuracy(current)} at step {current['step']}" if current else None),
        *_paired_facts(status["paired"]),
        ("evidence", _evidence(status["evidence"])),
        ("decided", decided if status["decided_at"] else None),
        ("forgetting", status["forgetting"]),
    ]


def _accuracy(found: Json) -> str:
    return f"{words.share(found['accuracy'])} (95 %: {words.interval(found['ci'])})"


def _paired_facts(paired: Json | None) -> list[tuple[str, RenderableType | None]]:
    """Counts at the last look, and which items; a list that the service cut says how many there are."""
    if paired is None:
        return []
    delta = f", difference {100 * paired['delta']:+.1f} points" if paired["delta"] is not None else ""
    pairs: list[tuple[str, RenderableType | None]] = [
        ("last look", f"{paired['n']} items: {paired['lost']:g} lost, {paired['gained']:g} gained{delta}")
    ]
    for side in ("lost", "gained"):
        items = paired.get(f"{side}_items") or []
        more = (paired.get(f"{side}_items_count") or len(items)) - len(items)
        pairs.append((f"  {side}", ", ".join(items) + (f" and {more} more" if more else "")))
    return pairs


def _evidence(evidence: Json | None) -> str | None:
    if evidence is None or evidence["value"] is None:
        return None
    decides = f"decides {evidence.get('decides', 'at')} {words.number(evidence['threshold'])}"
    return f"{evidence['statistic']} {words.number(evidence['value'])}, {decides}"


def plan(document: Json) -> list[RenderableType]:
    """A dry run's answer."""
    parts: list[RenderableType] = [
        Text("valid; nothing was stored", style="green"),
        facts([("recipe hash", document["recipe_hash"]), ("fits", "yes" if document["fits"] else "no")]),
        heading("Memory by card"),
    ]
    for card in document["cards"]:
        device = card["device"]
        where = device.get("name") or device.get("kind") or "the recipe's device"
        peak = card["plan"].get("peak_gib")
        told = f"{where}: {'fits' if card['fits'] else 'does not fit'}"
        parts.append(Text(told + (f", peak {words.number(peak)} GiB" if peak is not None else "")))
        components = card["plan"].get("components_gib") or {}
        parts.append(facts([(f"  {name}", f"{value:.2f} GiB") for name, value in components.items()]))
        if card["smallest_change"]:
            parts.append(Text(f"  smallest change that fits: {card['smallest_change']}", style="yellow"))
    if document["features_missing"]:
        parts.append(heading("Not in this release; posting would be refused"))
        parts += [Text(f"{problem['param']}: {problem['message']}") for problem in document["features_missing"]]
    return parts
