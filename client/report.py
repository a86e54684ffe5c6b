"""What is said when a followed run has ended: curves, looks with their items, damage stop, memory, time, and where to look on.

:func:`gather` asks the service, :func:`print_report` shows what it found.
"""

from typing import TYPE_CHECKING

from client import words
from client.api import DriftlineClient, Json

if TYPE_CHECKING:
    from rich.console import RenderableType

_MEMORY = "memory/peak_gib"


def gather(client: DriftlineClient, run_id: str) -> Json:
    """The run and all that the report shows, as one JSON document."""
    run = client.run(run_id)
    found: Json = {"run": run, "url": client.page_url(run["id"])}
    if run["kind"] == "train":
        looks = client.looks(run_id)
        found |= {
            "curves": client.curves(run_id),
            "looks": looks,
            "flips": {look["id"]: flips_of(client, look) for look in looks},
            "damage_stop": client.damage_stop(run_id),
        }
    elif run["kind"] == "eval":
        found["evaluations"] = client.evaluations(run_id)
    else:
        found["analyses"] = client.analyses(run_id)
    return found


def flips_of(client: DriftlineClient, look: Json) -> dict[str, list[str]]:
    """Ids of the items that a look found on the other side than the base model."""
    if look["evaluation_id"] is None:
        return {"lost": [], "gained": []}
    return {
        side: [item["item_id"] for item in client.items(look["evaluation_id"], flip=side)] if look[side] else []
        for side in ("lost", "gained")
    }


def peak_memory(found: Json) -> float | None:
    """Largest value of the runner's memory curve, GiB."""
    points = ((found.get("curves") or {}).get("curves") or {}).get(_MEMORY, {}).get("points", [])
    return max((point[1] for point in points if point[1] is not None), default=None)


def print_report(found: Json, *, last_words: str | None = None) -> None:
    """Show a report to a person."""
    from rich.text import Text

    from client import tables

    run = found["run"]
    peak = peak_memory(found)
    took = words.between(run["started_at"], run["finished_at"])
    opening = Text.assemble((run["name"] or run["kind"], "bold"), f"  {run['id']}  ", tables.state(run["state"]))
    opening.append(f": {run['outcome_reason']}" if run["outcome_reason"] else "")
    parts: list[RenderableType] = [Text(""), opening]
    if run["error"]:
        parts += tables.error(run["error"])
    if run["kind"] == "train":
        parts += [tables.heading("Curves"), tables.curves(found["curves"])]
        parts += [tables.heading("Looks"), tables.looks(found["looks"], found["flips"]), Text("")]
        parts += tables.damage(found["damage_stop"])
    parts += [Text(""), tables.facts([
        ("peak memory", f"{peak:.2f} GiB (the runner)" if peak is not None else None),
        ("took", words.duration(took) if took is not None else None),
        ("attempts", str(len(run["attempts"])) if len(run["attempts"]) > 1 else None),
        ("page", found["url"]),
    ])]  # fmt: skip
    if last_words:
        parts.append(Text(last_words))
    tables.show(*parts)
