"""Whether a checkpoint folder is what was written: every file against the manifest that was written last.

Whoever loads a checkpoint asks here first, so that an edited or truncated one is named as that. The trainer writes the folders
(`core.train.checkpoints`); nothing is written or loaded here.
"""

import hashlib
import json
from collections.abc import Collection
from pathlib import Path

MANIFEST = "manifest.json"
OPTIMIZER = "optimizer.safetensors"


class DamagedCheckpointError(Exception):
    """A checkpoint folder is incomplete or differs from its manifest; the message names the file."""


def verify_checkpoint(directory: Path, *, without: Collection[str] = ()) -> str:
    """Check every file but those named in ``without`` against the manifest and return the weights' hash.

    Raises :class:`DamagedCheckpointError` naming the first file that is missing, short or different.
    """
    manifest_path = directory / MANIFEST
    if not manifest_path.is_file():
        raise DamagedCheckpointError(f"{directory.name} has no {MANIFEST}: it was never completed")
    try:
        manifest = json.loads(manifest_path.read_text())
        files = {str(name): (facts["bytes"], facts["sha256"]) for name, facts in manifest["files"].items()}
        weights = str(manifest["weights_sha256"])
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
        raise DamagedCheckpointError(f"{directory.name}/{MANIFEST} cannot be read: {problem!r}") from problem
    for name, expected in files.items():
        if name in without:
            continue
        path = directory / name
        if not path.is_file():
            raise DamagedCheckpointError(f"{directory.name}/{name} is missing")
        if (path.stat().st_size, file_sha256(path)) != expected:
            raise DamagedCheckpointError(f"{directory.name}/{name} differs from the manifest")
    return weights


def file_sha256(path: Path) -> str:
    """The SHA-256 of a file's content, in hex."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
