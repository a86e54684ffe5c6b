"""Where the checkpoints of an analysis lie that no run made: folders with their steps, in order, checked by name.

Only names and the presence of files are looked at, so that wrong input is refused when it is posted; what the files hold is
checked when they are read.
"""

import json
import re
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from core.recipes.analysis import Checkpoints
from core.recipes.errors import RecipeError, allowed

MINIMUM = 4
_STEP = re.compile(r".*?([0-9]+)")
_WEIGHTS = ("model.safetensors", "model.safetensors.index.json")


@dataclass(frozen=True)
class Located:
    """One checkpoint: its step, how messages name it, and its folder (None: a model name that the worker resolves)."""

    step: int
    name: str
    folder: Path | None


def locate(given: Checkpoints, models_dir: Path | None) -> list[Located]:
    """Return the checkpoints in order of their steps; raises :class:`RecipeError` naming what is wrong and where."""
    if given.models is not None:
        found = [Located(one.step, one.model, None) for one in given.models]
    else:
        found = _in_folder(given, models_dir)
    _check_steps(found)
    return found


def _in_folder(given: Checkpoints, models_dir: Path | None) -> list[Located]:
    if models_dir is None:
        raise RecipeError(
            "checkpoints.folder", "this service has no model folder", "ask its operator to set DRIFTLINE_MODELS"
        )
    root = models_dir.resolve()
    folder = (root / (given.folder or "")).resolve()
    if not folder.is_relative_to(root) or not folder.is_dir():
        have = sorted(path.name for path in root.iterdir() if path.is_dir())
        raise RecipeError(
            "checkpoints.folder",
            f"there is no folder {given.folder!r} in the operator's model folder",
            f"folders there: {allowed(have)}",
        )
    steps = given.steps if given.steps is not None else _steps_by_name(folder)
    found = []
    for name, step in sorted(steps.items(), key=lambda item: item[1]):
        path = (folder / name).resolve()
        if not path.is_relative_to(folder) or not path.is_dir():
            raise RecipeError(
                "checkpoints.steps", f"{given.folder} has no subfolder {name!r}", "name the folders that hold weights"
            )
        _check_complete(path, f"{given.folder}/{name}")
        found.append(Located(step, f"{given.folder}/{name}", path))
    return found


def _steps_by_name(folder: Path) -> dict[str, int]:
    steps = {}
    for path in sorted(folder.iterdir()):
        if not path.is_dir() or path.name.startswith("."):
            continue
        match = _STEP.fullmatch(path.name)
        if match is None:
            raise RecipeError(
                "checkpoints.folder",
                f"the step of {path.name!r} is not in its name",
                'give the steps, such as {"folder": ..., "steps": {"base": 0, "step-20": 20}}',
            )
        steps[path.name] = int(match[1])
    return steps


def _check_complete(path: Path, name: str) -> None:
    if not any((path / file).is_file() for file in _WEIGHTS):
        raise RecipeError(
            "checkpoints.folder",
            f"{name} has no {_WEIGHTS[0]}",
            "restore the checkpoint, or leave it out by giving steps",
        )
    index = path / _WEIGHTS[1]
    if not index.is_file():
        return
    try:
        shards = sorted({str(file) for file in json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()})
    except (ValueError, KeyError, TypeError, AttributeError):
        raise RecipeError("checkpoints.folder", f"{name}/{index.name} is damaged", "restore the checkpoint") from None
    for shard in shards:
        if not (path / shard).is_file():
            raise RecipeError("checkpoints.folder", f"{name}/{shard} is missing", "restore the checkpoint")


def _check_steps(found: list[Located]) -> None:
    if len(found) < MINIMUM:
        raise RecipeError(
            "checkpoints",
            f"linearity needs at least {MINIMUM} checkpoints and there are {len(found)}",
            "name more checkpoints",
        )
    for before, after in pairwise(found):
        if after.step <= before.step:
            raise RecipeError(
                "checkpoints",
                f"steps must increase, but {after.name} is of step {after.step} and the one before it, {before.name}, of "
                f"step {before.step}",
                "list the checkpoints in the order of training, each once",
            )
