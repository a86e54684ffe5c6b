"""Submitting a recipe and following a run to its outcome. The exit status is the outcome; Ctrl-C only detaches."""

import sys
import uuid
from pathlib import Path

from client import commands, progress
from client.api import DriftlineClient, Json
from client.errors import ClientError, NotReachable
from client.follow import OUTCOMES, follow
from client.report import gather, print_report

DETACHED = 130


def submit(file: str, *, detach: bool, dry_run: bool, key: str | None, as_json: bool) -> int:
    """Post the recipe in ``file`` (``-`` is standard input) and follow the run."""
    recipe = read(file)
    with DriftlineClient() as client:
        if dry_run:
            return _dry_run(client, recipe, as_json=as_json)
        run = post(client, recipe, key=key)
        if detach:
            _detached(client, run, as_json=as_json)
            return 0
        return accompany(client, run, as_json=as_json)


def post(client: DriftlineClient, recipe: bytes, *, key: str | None = None) -> Json:
    """Post a recipe. When no answer comes it is not known what happened, and the error says how to repeat safely."""
    key = key or str(uuid.uuid4())
    try:
        return client.submit(recipe, idempotency_key=key)
    except NotReachable as error:
        if error.code != "not_reachable":
            error.hint = f"the run may have been accepted; repeat with --idempotency-key {key}, which never makes two"
        raise


def attach(run_id: str, *, as_json: bool) -> int:
    """Follow a run that was posted before."""
    with DriftlineClient() as client:
        return accompany(client, client.run(run_id), as_json=as_json)


def accompany(client: DriftlineClient, run: Json, *, as_json: bool, last_words: str | None = None) -> int:
    """Show a run's progress until its outcome, then a report; return the exit status."""
    if not as_json:
        print(f"run {run['id']}  {run['name'] or run['kind']}  {client.page_url(run['id'])}", flush=True)
    try:
        with progress.view_for(as_json=as_json) as view:
            for news in follow(client, run["id"]):
                view.show(news)
                run = news.run
    except KeyboardInterrupt:
        sys.stderr.write(
            f"\ndetached; run {run['id']} goes on\n"
            f"  follow it again  driftline show {run['id']} --follow\n"
            f"  cancel it        driftline cancel {run['id']}\n"
        )
        return DETACHED
    status = OUTCOMES[run["state"]]
    found = gather(client, run["id"])
    if as_json:
        progress.emit({"type": "outcome", "state": run["state"], "exit_status": status} | found)
    else:
        print_report(found, last_words=last_words)
    return status


def read(file: str) -> bytes:
    """The bytes of a recipe file, or of standard input for ``-``."""
    if file == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise ClientError(
            f"cannot read the recipe {file}: {error.strerror}",
            param="FILE",
            hint="give a JSON file, or - for standard input",
        ) from None


def _dry_run(client: DriftlineClient, recipe: bytes, *, as_json: bool) -> int:
    answer = client.dry_run(recipe)
    if as_json:
        commands.print_json(answer)
        return 0
    from client import tables

    tables.show(*tables.plan(answer))
    return 0


def _detached(client: DriftlineClient, run: Json, *, as_json: bool) -> None:
    if as_json:
        commands.print_json(run)
        return
    print(f"run {run['id']} is queued  {client.page_url(run['id'])}")
    print(f"follow it with `driftline show {run['id']} --follow`")
