"""Small checkpoint folders with known trajectories."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from core.dynamics.trajectory import Point

SHAPES = {
    "model.embed_tokens.weight": (60, 16),
    "model.layers.0.self_attn.q_proj.weight": (16, 16),
    "model.layers.0.input_layernorm.weight": (16,),
    "model.layers.1.self_attn.q_proj.weight": (16, 16),
    "model.layers.1.input_layernorm.weight": (16,),
    "model.norm.weight": (16,),
}

Weights = Mapping[str, np.ndarray]


def write_folder(
    folder: Path,
    weights: Weights,
    *,
    dtype: torch.dtype = torch.float32,
    shards: int = 1,
    config: dict | None = None,
    step: int | None = None,
) -> Path:
    """Write one Hugging Face folder; with ``step`` also the manifest that seals it."""
    folder.mkdir(parents=True)
    tensors = {name: torch.from_numpy(np.array(value)).to(dtype).contiguous() for name, value in weights.items()}
    if shards == 1:
        save_file(tensors, folder / "model.safetensors")
    else:
        names = list(tensors)
        place = {name: f"model-{at % shards + 1:05d}-of-{shards:05d}.safetensors" for at, name in enumerate(names)}
        for file in set(place.values()):
            save_file({name: tensors[name] for name in names if place[name] == file}, folder / file)
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": place}))
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    if step is not None:
        files = {
            path.name: {"bytes": path.stat().st_size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
            for path in folder.iterdir()
        }
        (folder / "manifest.json").write_text(json.dumps({"step": step, "weights_sha256": "", "files": files}))
    return folder


def walk(
    steps: Sequence[int], *, drift: float, noise: float, seed: int = 0, shapes: Mapping[str, tuple[int, ...]] = SHAPES
) -> list[dict[str, np.ndarray]]:
    """Weights at each step: every weight has its own constant drift per step, plus white noise per step."""
    rng = np.random.default_rng(seed)
    now = {name: rng.standard_normal(shape) * 0.02 for name, shape in shapes.items()}
    slope = {name: rng.choice([-1.0, 1.0], size=shape) * drift for name, shape in shapes.items()}
    found = [dict(now)]
    for before, after in pairwise(steps):
        gap = after - before
        now = {
            name: value + gap * slope[name] + noise * np.sqrt(gap) * rng.standard_normal(value.shape)
            for name, value in now.items()
        }
        found.append(now)
    return found


def write_trajectory(home: Path, steps: Sequence[int], weights: Sequence[Weights], **how) -> list[Point]:
    """Write one folder per step; ``how`` goes to :func:`write_folder`."""
    return [
        Point(step, write_folder(home / f"step-{step}", one, **how)) for step, one in zip(steps, weights, strict=True)
    ]
