"""References to models: `ORG/NAME`, a folder of the operator's, `run:ID/best|last|step-N`, or `smollm2-135m`.

The form and the known names are checked here; that a folder really holds a model is `check_model`, which the api calls with
the operator's folder. Nothing is downloaded and no weight is read.
"""

import re
from collections.abc import Collection
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, ValidationInfo

from core.recipes.catalogue import MODELS
from core.recipes.errors import RecipeError, allowed, did_you_mean, refuse

_PART = r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}"
_PLAIN = re.compile(rf"{_PART}(?:/{_PART})?")
_RUN = re.compile(r"run:[0-9a-f]{4,12}/(?:best|last|step-(?:0|[1-9][0-9]{0,8}))")
_RUN_ONLY = re.compile(r"run:[0-9a-f]{4,12}")

KNOWN_MODELS = "known_models"
FORMS = "ORG/NAME, a folder of the operator's model folder, run:ID/best, run:ID/last, run:ID/step-N, or smollm2-135m"


def is_run_ref(ref: str) -> bool:
    """Whether ``ref`` names a checkpoint of a run."""
    return ref.startswith("run:")


def _check(ref: str, info: ValidationInfo) -> str:
    if is_run_ref(ref):
        if not _RUN.fullmatch(ref):
            raise refuse(
                f"{ref!r} does not name a checkpoint",
                "write run:ID/best, run:ID/last or run:ID/step-N; ID is 4 to 12 hex digits",
            )
        return ref
    if not _PLAIN.fullmatch(ref) or ".." in ref:
        raise refuse(f"{ref!r} is not a model name", FORMS)
    local: Collection[str] | None = (info.context or {}).get(KNOWN_MODELS, ())
    if local is None or ref in MODELS or ref in local:
        return ref
    raise refuse(
        f"the model {ref!r} is not known here",
        f"{did_you_mean(ref, [*MODELS, *local])}allowed: {allowed([*MODELS, *sorted(local)])}; "
        "or put its folder into the operator's model folder (DRIFTLINE_MODELS)",
    )


def _check_against(ref: str, info: ValidationInfo) -> str:
    return ref if ref == "base" else _check(ref, info)


def _check_run(ref: str) -> str:
    if not _RUN_ONLY.fullmatch(ref):
        raise refuse(f"{ref!r} does not name a run", "write run:ID; ID is 4 to 12 lowercase hexadecimal digits")
    return ref


ModelRef = Annotated[str, Field(max_length=200), AfterValidator(_check)]
AgainstRef = Annotated[str, Field(max_length=200), AfterValidator(_check_against)]
RunRef = Annotated[str, Field(max_length=200), AfterValidator(_check_run)]


def local_models(models_dir: Path | None) -> tuple[str, ...]:
    """Names of the model folders below ``models_dir``: ``NAME`` or ``ORG/NAME``, those that hold a config.json."""
    if models_dir is None or not models_dir.is_dir():
        return ()
    found = [path.parent.relative_to(models_dir).as_posix() for path in models_dir.glob("*/config.json")]
    found += [path.parent.relative_to(models_dir).as_posix() for path in models_dir.glob("*/*/config.json")]
    return tuple(sorted(name for name in found if _PLAIN.fullmatch(name)))


def check_model(ref: str, models_dir: Path | None) -> None:
    """Refuse a reference that neither the catalogue nor the operator's folder knows; raises `RecipeError` for ``model``.

    References to runs are left to the store, which knows the runs.
    """
    if is_run_ref(ref) or ref in MODELS:
        return
    local = local_models(models_dir)
    if ref not in local:
        place = (
            "DRIFTLINE_MODELS is not set" if models_dir is None else "its folder is not in the operator's model folder"
        )
        raise RecipeError(
            "model",
            f"the model {ref!r} is not known and {place}",
            f"{did_you_mean(ref, [*MODELS, *local])}allowed: {allowed([*MODELS, *local])}",
        )
