"""The eval recipe: one model or checkpoint on suites, greedy by default, optionally against other checkpoints."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from core.recipes.base import (
    After,
    Attempts,
    BatchSize,
    Block,
    Device,
    Dtype,
    Engine,
    Length,
    Name,
    Options,
    Priority,
    Prompt,
    Seed,
    Tags,
    default_dtype,
    expand,
)
from core.recipes.extrapolation import Extrapolation
from core.recipes.model_refs import AgainstRef, ModelRef
from core.recipes.sources import SuiteName, suite_split

# Sampled evaluation as in the paper's A.7.
SAMPLED_TEMPERATURE = 0.6
SAMPLED_TOP_P = 0.95


def _sampled(data: dict[str, Any]) -> bool:
    return bool(data.get("n", 1) > 1 or data.get("temperature", 0.0) > 0)


class SuiteSpec(Block):
    """One suite and how it is asked: greedy with one sample, or ``n`` samples (0.6 and top-p 0.95 unless said otherwise)."""

    suite: SuiteName
    n: Annotated[int, Field(ge=1, le=4096)] = 1
    temperature: Annotated[float, Field(ge=0, le=10)] = Field(
        default_factory=lambda data: SAMPLED_TEMPERATURE if data.get("n", 1) > 1 else 0.0
    )
    top_p: Annotated[float, Field(gt=0, le=1)] = Field(
        default_factory=lambda data: SAMPLED_TOP_P if _sampled(data) else 1.0
    )
    items: Annotated[int, Field(ge=1, le=10_000_000)] | None = None
    options: Options = Field(default_factory=dict)
    split: Annotated[str, Field(min_length=1, max_length=64)] = Field(
        default_factory=lambda data: suite_split(data.get("suite", ""))
    )


SuiteField = Annotated[SuiteSpec, BeforeValidator(expand(str, "suite"), json_schema_input_type=str | SuiteSpec)]


def _later(data: dict[str, Any]) -> str:
    """The later of two extrapolated checkpoints is the model; without those a recipe has to name one (checks)."""
    extrapolation = data.get("extrapolation")
    return extrapolation.b if isinstance(extrapolation, Extrapolation) else ""


class EvalRecipe(Block):
    """One evaluation run. ``prompt`` null uses the run's own prompt block when the model is a run's checkpoint.

    With ``extrapolation`` the model is its b, which is asked as well: what lies on the line is compared with it. With
    ``regrade`` nothing is asked: the stored answers of that evaluation are graded again, and model and suites only say of what.
    """

    kind: Literal["eval"]
    name: Name | None = None
    extrapolation: Extrapolation | None = None
    model: ModelRef = Field(default_factory=_later)
    against: Annotated[tuple[AgainstRef, ...], Field(strict=False, max_length=16)] = ()
    suites: Annotated[tuple[SuiteField, ...], Field(strict=False, min_length=1, max_length=64)]
    regrade: Annotated[str, Field(pattern="^[0-9a-f]{12}$")] | None = None
    prompt: Prompt | None = None
    max_prompt_length: Length = 1024
    max_completion_length: Length = 2048
    device: Device = Device()
    dtype: Dtype = Field(default_factory=default_dtype)
    engine: Engine = "auto"
    batch_size: BatchSize = 64
    seed: Seed = 0
    tags: Tags = ()
    priority: Priority = 0
    after: After = ()
    max_attempts: Attempts = 3

    @property
    def networks(self) -> int:
        """How many networks decode together."""
        return 1 if self.extrapolation is None else 2
