"""A checkpoint as a LoRA adapter in peft's format: what training changed, to a stated rank and with its error.

For a run that trained adapters it is the run's own. For any other it is the truncated singular value decomposition of each
linear map's difference to the base, which is the closest adapter of that rank. Embeddings and norms have no place in an
adapter; what share of the whole change that leaves out is part of the result.
"""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from core.engines.lines import FolderWeights
from core.engines.models import ModelError
from core.engines.tensor_writer import Progress
from core.train.adapters import CONFIG, WEIGHTS

ADAPTER, ADAPTER_CONFIG = "adapter_model.safetensors", "adapter_config.json"
_PREFIX = "base_model.model."
_EXACT_UP_TO = 1024
"""Maps whose smaller side is at most this are decomposed exactly; larger ones by a randomised method with a fixed seed."""
_WORST = 5


def own_adapter(folder: Path, source: Path) -> bool:
    """Copy the adapter that the run trained, where ``source`` holds one."""
    if not (source / WEIGHTS).is_file():
        return False
    shutil.copyfile(source / WEIGHTS, folder / ADAPTER)
    shutil.copyfile(source / CONFIG, folder / ADAPTER_CONFIG)
    return True


def write_adapter(
    folder: Path, source: Path, base: Path, *, rank: int, base_name: str, on_tensor: Progress
) -> dict[str, Any]:
    """Write the adapter that takes ``base`` nearest to ``source``; return its errors.

    ``relative_error`` is ||D - BA|| / ||D|| over the adapted maps, ``left_out`` the share of the whole squared change that
    lies in weights without an adapter, ``worst`` the maps with the largest relative errors.
    """
    factors: dict[str, Tensor] = {}
    modules: set[str] = set()
    errors: list[tuple[float, str]] = []
    whole = adapted = missed = 0.0
    with FolderWeights(source) as after, FolderWeights(base) as before:
        names = sorted(after)
        for done, name in enumerate(names, 1):
            if name not in before or before.shape(name) != after.shape(name):
                raise ModelError(
                    f"{name} is not in the base model with the same shape, so their difference has no meaning"
                )
            change = after[name] - before[name]
            square = float(change.double().square().sum())
            whole += square
            if _is_linear(name, change):
                b, a = decomposed(change, rank)
                error = float((change.double() - b.double() @ a.double()).square().sum())
                adapted, missed = adapted + square, missed + error
                errors.append((math.sqrt(error / square) if square else 0.0, name))
                module = name.removesuffix(".weight")
                factors |= {f"{_PREFIX}{module}.lora_A.weight": a, f"{_PREFIX}{module}.lora_B.weight": b}
                modules.add(module.rpartition(".")[2])
            on_tensor(done, len(names))
    if not factors:
        raise ModelError("the model has no linear maps in its layers that an adapter could be attached to")
    save_file(factors, folder / ADAPTER, metadata={"format": "pt"})
    (folder / ADAPTER_CONFIG).write_text(json.dumps(_config(rank, sorted(modules), base_name), indent=2) + "\n")
    return {
        "rank": rank,
        "relative_error": math.sqrt(missed / adapted) if adapted else 0.0,
        "left_out": 1 - adapted / whole if whole else 0.0,
        "worst": [{"map": name, "relative_error": error} for error, name in sorted(errors, reverse=True)[:_WORST]],
    }


def decomposed(change_OI: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Return B [O, rank] and A [rank, I] whose product is nearest to the change; zeros fill what a small map has not."""
    small = min(change_OI.shape)
    kept = min(rank, small)
    if small <= _EXACT_UP_TO:
        u, s, vh = torch.linalg.svd(change_OI.double(), full_matrices=False)
    else:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            u, s, v = torch.svd_lowrank(change_OI.float(), q=min(small, rank + 32), niter=6)
        vh = v.mT
    root = s[:kept].sqrt()
    b = torch.zeros(change_OI.shape[0], rank)
    a = torch.zeros(rank, change_OI.shape[1])
    b[:, :kept], a[:kept] = (u[:, :kept] * root).float(), (root[:, None] * vh[:kept]).float()
    return b.contiguous(), a.contiguous()


def _is_linear(name: str, tensor: Tensor) -> bool:
    """A matrix inside a numbered layer: embeddings and the head are outside them."""
    return tensor.ndim == 2 and name.endswith(".weight") and any(part.isdecimal() for part in name.split("."))


def _config(rank: int, modules: list[str], base_name: str) -> dict[str, Any]:
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base_name,
        "r": rank,
        "lora_alpha": rank,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "target_modules": modules,
    }
