"""The commands that ask the service one thing and print the answer: as a JSON document, or as a table for people.

Each returns the exit status. Following runs is in ``following``, starting the service in ``starting``.
"""

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from client import words
from client.api import DriftlineClient, Json
from client.follow import FINAL

if TYPE_CHECKING:
    from rich.console import RenderableType

_WAIT_S = 1.0


def print_json(document: object) -> None:
    """One JSON document on standard output."""
    json.dump(document, sys.stdout, indent=2, ensure_ascii=False)
    sys.stdout.write("\n")


def print_parts(*parts: "RenderableType") -> None:
    """Parts for a person."""
    from client import tables

    tables.show(*parts)


def list_runs(*, limit: int, as_json: bool, **filters: str | None) -> int:
    """Newest runs first."""
    with DriftlineClient() as client:
        page = client.runs(limit=limit, **filters)
    if as_json:
        print_json(page)
        return 0
    from client import tables

    print_parts(tables.runs(page["data"]))
    if page["has_more"]:
        print(f"older runs are left out; --limit {limit * 2} shows more")
    return 0


def show(run_id: str, *, as_json: bool) -> int:
    """One run."""
    with DriftlineClient() as client:
        document = client.run(run_id)
        url = client.page_url(document["id"])
    if as_json:
        print_json(document)
        return 0
    from client import tables

    print_parts(*tables.run(document, url))
    return 0


def curves(
    run_id: str,
    *,
    keys: Sequence[str],
    from_step: int | None,
    to_step: int | None,
    points: int,
    every: bool,
    as_json: bool,
) -> int:
    """Curves of a run."""
    with DriftlineClient() as client:
        document = client.curves(
            run_id, keys=list(keys) or None, from_step=from_step, to_step=to_step, max_points=points
        )
    if as_json:
        print_json(document)
        return 0
    from client import tables

    print_parts(tables.curves(document, every=every or bool(keys)))
    if not every and not keys and len(document["curves"]) > 1:
        print(f"\n{len(document['curves'])} curves in all; --all shows every one")
    return 0


def damage_stop(run_id: str, *, as_json: bool) -> int:
    """The damage-stop status of a run."""
    with DriftlineClient() as client:
        status = client.damage_stop(run_id)
    if as_json:
        print_json(status)
        return 0
    from client import tables

    print_parts(*tables.damage(status))
    return 0


def looks(run_id: str, *, items: bool, as_json: bool) -> int:
    """Looks of a run, with ``items`` also which items changed sides."""
    from client.report import flips_of

    with DriftlineClient() as client:
        rows = client.looks(run_id)
        flips = {row["id"]: flips_of(client, row) for row in rows} if items else {}
    if as_json:
        print_json({"data": [row | _ids(flips, row) for row in rows] if items else rows})
        return 0
    from client import tables

    print_parts(tables.looks(rows, flips))
    return 0


def _ids(flips: Json, row: Json) -> Json:
    """Item ids beside the counts, under names of their own."""
    sides = flips[row["id"]]
    return {"lost_items": sides["lost"], "gained_items": sides["gained"]}


def logs(
    run_id: str, *, follow: bool, tail: int, level: str | None, search: str | None, attempt: int | None, as_json: bool
) -> int:
    """The last log lines; with ``follow`` also what is written until the run is final."""
    with DriftlineClient() as client:
        page = client.logs(run_id, tail=tail, level=level, search=search, attempt=attempt)
        if not follow:
            _print_log(page["data"], as_json=as_json, lines=False)
            return 0
        try:
            _follow_log(client, run_id, page, level=level, search=search, attempt=attempt, as_json=as_json)
        except KeyboardInterrupt:
            sys.stderr.write("\n")
        return 0


def _follow_log(
    client: DriftlineClient,
    run_id: str,
    page: Json,
    *,
    level: str | None,
    search: str | None,
    attempt: int | None,
    as_json: bool,
) -> None:
    import threading

    pause = threading.Event()
    _print_log(page["data"], as_json=as_json, lines=True)
    ended = False
    while True:
        page = client.logs(run_id, after=page["next"], tail=1000, level=level, search=search, attempt=attempt)
        _print_log(page["data"], as_json=as_json, lines=True)
        if page["has_more"]:
            continue
        if ended:
            return
        # Once more after the end: the last lines may have come between the two questions.
        ended = client.run(run_id)["state"] in FINAL
        if not ended:
            pause.wait(_WAIT_S)


def _print_log(entries: Sequence[Json], *, as_json: bool, lines: bool) -> None:
    if as_json and not lines:
        print_json({"data": entries})
        return
    for entry in entries:
        sys.stdout.write((json.dumps(entry, ensure_ascii=False) if as_json else words.plain(entry["text"])) + "\n")
    sys.stdout.flush()


def change(run_id: str, what: str, *, as_json: bool) -> int:
    """Cancel, pause or resume a run."""
    with DriftlineClient() as client:
        document = {"cancel": client.cancel, "pause": client.pause, "resume": client.resume}[what](run_id)
    if as_json:
        print_json(document)
        return 0
    told = {
        "cancelled": "cancelled",
        "cancelling": "is cancelled after it wrote a checkpoint",
        "pausing": "is paused after it wrote a checkpoint",
        "paused": "is paused",
        "queued": "is in the queue again and continues from its last checkpoint",
    }
    print(f"run {document['id']} {told.get(document['state'], words.state(document['state']))}")
    return 0
