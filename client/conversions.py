"""Exporting a checkpoint: post the run that does it, follow it, and download what it wrote, checked by its SHA-256."""

import hashlib
import os
import re
from pathlib import Path
from typing import Any

from client import commands, following
from client.api import DriftlineClient, Json
from client.errors import ClientError

_REFERENCE = re.compile(r"(?:run:)?([0-9a-f]{4,12})/(last|step-(\d+))")
_ID = re.compile(r"[0-9a-f]{12}")


def export(checkpoint: str, wish: dict[str, Any], *, detach: bool, output: str | None, as_json: bool) -> int:
    """Export ``checkpoint``; the exit status is the run's outcome. ``output`` is the folder for the files."""
    folder = None if output is None else Path(output)
    if folder is not None and (detach or folder.exists()):
        raise ClientError(
            f"{folder} exists already" if not detach else "nothing is there to download while the run waits",
            param="--output",
            hint="name a folder that does not exist, and leave out --detach",
        )
    with DriftlineClient() as client:
        wanted = {name: value for name, value in wish.items() if value is not None}
        run = client.export(checkpoint_id(client, checkpoint), wanted)
        if detach:
            if as_json:
                commands.print_json(run)
            else:
                print(f"run {run['id']}  {run['name']}  {client.page_url(run['id'])}")
            return 0
        status = following.accompany(client, run, as_json=as_json)
        if status == 0 and folder is not None:
            _download(client, run["id"], folder)
            if not as_json:
                print(f"{folder}  {len(list(folder.iterdir()))} files")
        return status


def checkpoint_id(client: DriftlineClient, name: str) -> str:
    """The id of ``run:ID/step-N``, of ``run:ID/last``, or of a checkpoint that is named by its id."""
    if _ID.fullmatch(name):
        return name
    match = _REFERENCE.fullmatch(name)
    if match is None:
        raise ClientError(
            f"{name!r} does not name a checkpoint",
            param="CHECKPOINT",
            hint="write run:ID/step-N, run:ID/last, or a checkpoint's id of 12 hexadecimal digits",
        )
    rows = client.checkpoints(match[1])
    found = [row for row in rows if match[3] is None or row["step"] == int(match[3])]
    if not found:
        steps = ", ".join(str(row["step"]) for row in rows) or "none"
        raise ClientError(
            f"run {match[1]} has no checkpoint of {match[2]}", param="CHECKPOINT", hint=f"it has steps: {steps}"
        )
    last: Json = found[-1]
    return str(last["id"])


def _download(client: DriftlineClient, run_id: str, folder: Path) -> None:
    """Write the files aside and give the folder its name only when every one is what the service says it is."""
    row = client.checkpoints(run_id)[-1]
    aside = folder.with_name(f".{folder.name}.{os.getpid()}.part")
    aside.mkdir(parents=True)
    for file in row["files"]:
        digest = hashlib.sha256()
        with client.download(file["href"], {}) as (_, chunks), (aside / Path(file["name"]).name).open("wb") as target:
            for chunk in chunks:
                digest.update(chunk)
                target.write(chunk)
        if digest.hexdigest() != file["sha256"]:
            raise ClientError(f"{file['name']} did not arrive as it was sent", hint="run the command again")
    aside.rename(folder)
