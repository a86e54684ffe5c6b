"""The analysis recipe: what to compute, over the checkpoints of one train run or over checkpoints from elsewhere."""

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from core.recipes.base import After, Attempts, Block, Dtype, Name, Priority, Prompt, Seed, Tags, expand
from core.recipes.errors import refuse
from core.recipes.model_refs import ModelRef, RunRef, is_run_ref
from core.recipes.sources import SuiteName
from core.recipes.weights import WEIGHTS, Export, Extrapolation, WeightsName

AnalysisName = Literal[
    "weight_linearity",
    "token_linearity",
    "logit_linearity",
    "activation_linearity",
    "first_order",
    "gradient_noise",
]
Step = Annotated[int, Field(ge=0, le=10_000_000)]
TokenIds = Annotated[tuple[Annotated[int, Field(ge=0, le=2**31 - 1)], ...], Field(strict=False, min_length=1)]

_FOLDER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,120}(?:/[A-Za-z0-9][A-Za-z0-9._-]{0,120}){0,4}")
OF_RUNS = ("gradient_noise",)
"""Analyses that need a train run: its data, rewards and optimizer."""
WITHOUT_PROBE = ("weight_linearity", "gradient_noise")


def _folder(name: str) -> str:
    if not _FOLDER.fullmatch(name) or ".." in name:
        raise refuse(
            f"{name!r} is not a folder name", "a relative name such as my-run, without .. and without / at its ends"
        )
    return name


def _not_a_run(ref: str) -> str:
    if is_run_ref(ref):
        raise refuse(f"{ref!r} is a checkpoint of a run", "write run: run:ID, which takes all of its checkpoints")
    return ref


FolderName = Annotated[str, Field(max_length=600), AfterValidator(_folder)]


class CheckpointModel(Block):
    """One checkpoint: a model by its name, and its training step."""

    model: Annotated[ModelRef, AfterValidator(_not_a_run)]
    step: Step


class Checkpoints(Block):
    """Checkpoints that no run of this service made: a ``folder`` of them, or a list of ``models``.

    The folder lies inside the operator's model folder; its subfolders are Hugging Face checkpoints. ``steps`` gives each
    subfolder's training step; without it every subfolder is one whose name ends with its step (``step-20``,
    ``global_step_20``, ``checkpoint-20``).
    """

    folder: FolderName | None = None
    steps: Annotated[dict[FolderName, Step], Field(max_length=10_000)] | None = None
    models: Annotated[tuple[CheckpointModel, ...], Field(strict=False, min_length=1, max_length=10_000)] | None = None


class DrivenBy(Block):
    """The optimizer that made checkpoints from elsewhere: what the null of the headline is driven by.

    ``momentum`` is sgd's; an update is one optimizer step, ``updates_per_step`` of them a training step.
    """

    optimizer: Literal["adamw", "sgd"] = "adamw"
    adam_beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    adam_beta2: Annotated[float, Field(ge=0, lt=1)] = 0.999
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    lr_schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup_updates: Annotated[int, Field(ge=0, le=10_000_000)] = 0
    updates_per_step: Annotated[int, Field(ge=1, le=65_536)] = 1
    max_steps: Annotated[int, Field(ge=1, le=10_000_000)] | None = None


class GivenProbe(Block):
    """One token sequence to score; the completion's tokens are measured."""

    prompt_ids: TokenIds
    completion_ids: TokenIds


class Probe(Block):
    """The token sequences a probe scores: ``n`` completions of ``items`` items of a suite by the first checkpoint.

    They are sampled as evaluations are (the paper's A.7). With ``token_ids`` the sequences are those, and nothing is sampled.
    """

    suite: SuiteName = "holdout"
    items: Annotated[int, Field(ge=1, le=100_000)] = 50
    n: Annotated[int, Field(ge=1, le=4096)] = 4
    temperature: Annotated[float, Field(gt=0, le=100)] = 0.6
    top_p: Annotated[float, Field(gt=0, le=1)] = 0.95
    max_completion_length: Annotated[int, Field(ge=1, le=1 << 20)] = 1024
    token_ids: Annotated[tuple[GivenProbe, ...], Field(strict=False, min_length=1, max_length=65_536)] | None = None


class ComputeSpec(Block):
    """One analysis.

    ``sample``: how many weights (null takes all), or numbers per layer of ``activation_linearity``, to draw; ``threshold``: R2
    above it counts as linear. ``dtype`` is that of the forward passes: bfloat16 hides changes below its spacing. ``groups``:
    how many groups' gradients ``gradient_noise`` takes at each checkpoint.
    """

    name: AnalysisName | WeightsName
    sample: Annotated[int, Field(ge=1, le=2**40)] | None = None
    threshold: Annotated[float, Field(ge=0, le=1)] = 0.7
    probe: Probe | None = Field(
        default_factory=lambda data: None if data.get("name") in (*WITHOUT_PROBE, *WEIGHTS) else Probe()
    )
    dtype: Dtype = "float32"
    groups: Annotated[int, Field(ge=2, le=4096)] = 16
    extrapolation: Extrapolation | None = Field(
        default_factory=lambda data: Extrapolation() if data.get("name") == "extrapolate" else None,
        exclude_if=lambda value: value is None,
    )
    export: Export | None = Field(default=None, exclude_if=lambda value: value is None)


ComputeField = Annotated[ComputeSpec, BeforeValidator(expand(str, "name"), json_schema_input_type=str | ComputeSpec)]


def _checkpoints(value: Any) -> Any:
    if isinstance(value, list):
        return {"models": value}
    return {"folder": value} if isinstance(value, str) else value


class AnalysisRecipe(Block):
    """One analysis run over a train run's checkpoints, or over ``checkpoints`` from elsewhere.

    ``prompt`` renders the items of probes; null takes the train run's own.
    """

    kind: Literal["analysis"]
    name: Name | None = None
    run: RunRef | None = None
    checkpoints: Annotated[Checkpoints | None, BeforeValidator(_checkpoints)] = None
    driven_by: DrivenBy | None = None
    compute: Annotated[tuple[ComputeField, ...], Field(strict=False, min_length=1, max_length=16)]
    prompt: Prompt | None = None
    seed: Seed = 0
    tags: Tags = ()
    priority: Priority = 0
    after: After = ()
    max_attempts: Attempts = 3
