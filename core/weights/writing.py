"""Writing a set of weights as a checkpoint folder, one tensor at a time.

Config and tokenizer are those of the checkpoint that the weights are like.
"""

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file

from core.engines.lines import FolderWeights, Weights
from core.engines.models import INDEX_FILE, WEIGHTS_FILE, weights_sha256
from core.engines.tensor_writer import Progress, no_progress, write_safetensors
from core.train import adapters, checkpoints

_NOT_COPIED = {INDEX_FILE, checkpoints.MANIFEST, checkpoints.TRAINER_STATE, checkpoints.OPTIMIZER, adapters.CONFIG}


def write_like(
    directory: Path,
    weights: Weights,
    like: Path,
    *,
    dtype: torch.dtype,
    step: int,
    on_tensor: Progress = no_progress,
) -> checkpoints.WrittenCheckpoint:
    """Write ``weights`` as a complete model folder with the shapes, config and tokenizer of the folder ``like``.

    Memory is bounded by what one tensor takes. A crash leaves nothing under ``directory``.
    """
    directory.parent.mkdir(parents=True, exist_ok=True)
    aside = directory.with_name(f".{directory.name}.weights")
    write_safetensors(aside, weights, shapes_of(like), dtype, on_tensor)
    digest = weights_sha256(load_file(aside))

    def save(folder: Path) -> None:
        copy_surroundings(like, folder, dtype)
        aside.rename(folder / WEIGHTS_FILE)

    return checkpoints.write_checkpoint(
        directory, step=step, weights_sha256=digest, save_model=save, optimizer_tensors=None, trainer_state={}
    )


def shapes_of(folder: Path) -> dict[str, tuple[int, ...]]:
    """Return the shape of every weight of a model folder without reading one."""
    with FolderWeights(folder) as weights:
        return {name: weights.shape(name) for name in weights}


def copy_surroundings(like: Path, folder: Path, dtype: torch.dtype) -> None:
    """Copy config and tokenizer, everything of a model folder but its weights; the config states the new dtype."""
    for path in sorted(like.iterdir()):
        if path.is_file() and path.suffix != ".safetensors" and path.name not in _NOT_COPIED:
            shutil.copyfile(path, folder / path.name)
    config = json.loads((like / "config.json").read_text())
    key = "torch_dtype" if "torch_dtype" in config else "dtype"
    config[key] = str(dtype).removeprefix("torch.")
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
