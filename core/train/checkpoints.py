"""Checkpoint folders: written aside, fsynced, hashed, renamed; only a complete one can ever be read.

A folder is an ordinary Hugging Face model folder (config, safetensors with fp32 weights, tokenizer) plus
``optimizer.safetensors``, ``trainer_state.json`` and, written last, ``manifest.json`` with the SHA-256 of every file.
This module knows files, not the database: the row that makes a checkpoint count is written by the caller after the rename.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from core.engines.manifest import MANIFEST, OPTIMIZER, DamagedCheckpointError, file_sha256, verify_checkpoint

__all__ = [
    "MANIFEST", "OPTIMIZER", "TRAINER_STATE", "CheckpointFile", "DamagedCheckpointError", "WrittenCheckpoint",
    "drop_optimizer", "manifest_without_optimizer", "read_optimizer", "read_trainer_state", "remove_checkpoint",
    "remove_leftovers", "verify_checkpoint", "write_checkpoint",
]  # fmt: skip

TRAINER_STATE = "trainer_state.json"


@dataclass(frozen=True)
class CheckpointFile:
    """One file of a checkpoint: name inside the folder, size in bytes, SHA-256 in hex."""

    name: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class WrittenCheckpoint:
    """A complete folder on disk. ``weights_sha256`` hashes the tensors, so it is equal for equal weights whatever the file."""

    directory: Path
    step: int
    weights_sha256: str
    files: tuple[CheckpointFile, ...]

    @property
    def bytes(self) -> int:
        """Size of all files together."""
        return sum(file.bytes for file in self.files)


def write_checkpoint(
    directory: Path,
    *,
    step: int,
    weights_sha256: str,
    save_model: Callable[[Path], None],
    optimizer_tensors: Mapping[str, Tensor] | None,
    trainer_state: Mapping[str, Any],
) -> WrittenCheckpoint:
    """Write one checkpoint to ``directory`` so that a crash at any moment leaves either nothing or the whole.

    ``save_model`` writes the model and tokenizer files into the folder it is given. ``optimizer_tensors`` is None for weights
    that no update made. An existing folder of the same name is replaced (it never had a row).
    """
    aside = directory.with_name(f".{directory.name}.writing")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    save_model(aside)
    if optimizer_tensors is not None:
        save_file(dict(optimizer_tensors), aside / OPTIMIZER)
    _write_json(aside / TRAINER_STATE, trainer_state)
    files = tuple(_seal(path) for path in sorted(aside.iterdir()))
    manifest = {
        "step": step,
        "weights_sha256": weights_sha256,
        "files": {file.name: {"bytes": file.bytes, "sha256": file.sha256} for file in files},
    }
    _write_json(aside / MANIFEST, manifest)
    files = (*files, _seal(aside / MANIFEST))
    _sync(aside)
    shutil.rmtree(directory, ignore_errors=True)
    aside.rename(directory)
    _sync(directory.parent)
    return WrittenCheckpoint(directory, step, weights_sha256, files)


def read_optimizer(directory: Path) -> dict[str, Tensor]:
    """Return the optimizer tensors of a checkpoint; raises :class:`DamagedCheckpointError` when it holds weights only."""
    path = directory / OPTIMIZER
    if not path.is_file():
        raise DamagedCheckpointError(f"{directory.name} holds weights only; it cannot be continued")
    return load_file(path)


def read_trainer_state(directory: Path) -> dict[str, Any]:
    """Return the counters that were stored with a checkpoint."""
    state: dict[str, Any] = json.loads((directory / TRAINER_STATE).read_text())
    return state


def manifest_without_optimizer(directory: Path) -> CheckpointFile:
    """Return what the manifest will be as a file once :func:`drop_optimizer` has run."""
    data = _manifest_without_optimizer(directory)
    return CheckpointFile(MANIFEST, len(data), hashlib.sha256(data).hexdigest())


def drop_optimizer(directory: Path) -> None:
    """Keep the weights of a checkpoint and remove its optimizer state; a crash at any moment leaves a folder that verifies.

    Doing so again changes nothing.
    """
    if not (directory / OPTIMIZER).exists():
        return
    aside = directory / f".{MANIFEST}.writing"
    aside.write_bytes(_manifest_without_optimizer(directory))
    _sync(aside)
    aside.rename(directory / MANIFEST)
    _sync(directory)
    (directory / OPTIMIZER).unlink()


def _manifest_without_optimizer(directory: Path) -> bytes:
    manifest = json.loads((directory / MANIFEST).read_text())
    manifest["files"].pop(OPTIMIZER, None)
    return _json_bytes(manifest)


def remove_checkpoint(directory: Path) -> None:
    """Remove a folder so that it is never seen half gone under its own name."""
    if directory.exists():
        doomed = directory.with_name(f".{directory.name}.removing")
        directory.rename(doomed)
        shutil.rmtree(doomed)


def remove_leftovers(parent: Path, keep: Collection[str]) -> None:
    """Remove every folder but those named in ``keep``; the caller holds the run's lock.

    A killed runner leaves a folder half written, complete but without its row, or no longer wanted but not yet removed.
    """
    if parent.is_dir():
        for path in parent.iterdir():
            if path.is_dir() and path.name not in keep:
                shutil.rmtree(path)


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_bytes(_json_bytes(value))


def _json_bytes(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, indent=1, sort_keys=True, allow_nan=False).encode()


def _seal(path: Path) -> CheckpointFile:
    _sync(path)
    return CheckpointFile(path.name, path.stat().st_size, file_sha256(path))


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
