"""The analysis recipe: what to compute over the checkpoints of one train run."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from core.recipes.base import After, Attempts, Block, Name, Priority, Seed, Tags, expand
from core.recipes.model_refs import RunRef
from core.recipes.sources import SuiteName

AnalysisName = Literal["weight_linearity", "token_linearity", "logit_linearity", "activation_linearity"]


class Probe(Block):
    """The token sequences a probe scores: ``n`` base-model completions of ``items`` items of a suite."""

    suite: SuiteName = "holdout"
    items: Annotated[int, Field(ge=1, le=100_000)] = 50
    n: Annotated[int, Field(ge=1, le=4096)] = 4


class ComputeSpec(Block):
    """One analysis. ``sample``: how many weights to draw (null takes all); ``threshold``: R2 above it counts as linear."""

    name: AnalysisName
    sample: Annotated[int, Field(ge=1, le=2**40)] | None = None
    threshold: Annotated[float, Field(ge=0, le=1)] = 0.7
    probe: Probe | None = Field(
        default_factory=lambda data: None if data.get("name") == "weight_linearity" else Probe()
    )


ComputeField = Annotated[ComputeSpec, BeforeValidator(expand(str, "name"), json_schema_input_type=str | ComputeSpec)]


class AnalysisRecipe(Block):
    """One analysis run over a train run's checkpoints."""

    kind: Literal["analysis"]
    name: Name | None = None
    run: RunRef
    compute: Annotated[tuple[ComputeField, ...], Field(strict=False, min_length=1, max_length=16)]
    seed: Seed = 0
    tags: Tags = ()
    priority: Priority = 0
    after: After = ()
    max_attempts: Attempts = 3
