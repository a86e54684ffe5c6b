"""The train recipe: what to train, on what, how, and when to look and to stop.

Field names are TRL's where TRL has one. Fields are declared so that a derived default can use the fields above it; the
defaults that need other blocks are filled in by `resolution`. Contradictions between fields are found by `checks`.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from core.recipes.algorithm import Algorithm, names_supervised
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
    false_is_null,
)
from core.recipes.errors import allowed, did_you_mean, refuse
from core.recipes.model_refs import ModelRef
from core.recipes.regrounding import Regrounding
from core.recipes.rewards import Rewards, default_rewards
from core.recipes.sources import SuiteName, check_dataset

Count = Annotated[int, Field(ge=1, le=65_536)]
Steps = Annotated[int, Field(ge=1, le=1_000_000)]


def _off_is_null(value: Any) -> Any:
    return None if value is False or value == "off" else value


def _auto_is_null(value: Any) -> Any:
    return None if value == "auto" else value


def _linearity(value: Any) -> Any:
    if isinstance(value, dict) and set(value) == {"name"}:
        return value["name"]
    return "off" if value is False or value is None else value


def _keep(value: Any) -> Any:
    if value != "all" and (not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 1_000_000):
        raise refuse(f"keep is {value!r}", 'write a whole number of checkpoints from 1 to 1000000, or "all"')
    return value


class PassRate(Block):
    """Train only on items that the start model solves with a frequency from ``low`` to ``high``, both included.

    ``samples`` completions of each item are drawn once, as the run itself samples.
    """

    low: Annotated[float, Field(ge=0, le=1)]
    high: Annotated[float, Field(ge=0, le=1)]
    samples: Annotated[int, Field(ge=1, le=1024)] = 8


def _pass_rate(value: Any) -> Any:
    if isinstance(value, list | tuple):
        if len(value) != 2:
            raise refuse(f"pass_rate has {len(value)} numbers", "two, the lowest and the highest: [0.1, 0.9]")
        return {"low": value[0], "high": value[1]}
    return None if value is False else value


PassRateField = Annotated[
    PassRate | None, BeforeValidator(_pass_rate, json_schema_input_type=list[float] | PassRate | None)
]


class Data(Block):
    """The training items and how many of them are held out for the looks (drawn by the recipe's seed).

    ``solution`` is what supervised algorithms learn of an item: a text in which ``{answer}`` and ``{NAME}`` stand for the
    item's answer and for a text of its ``meta``; null is ``{solution}`` where the items have one, else ``{answer}``.
    """

    dataset: Annotated[str, Field(max_length=200), AfterValidator(check_dataset)]
    split: Annotated[str, Field(min_length=1, max_length=64)] = "train"
    holdout: Annotated[int, Field(ge=0, le=1_000_000)] = 200
    options: Options = Field(default_factory=dict)
    pass_rate: PassRateField = None
    solution: Annotated[str, Field(min_length=1, max_length=4000)] | None = None


class Optimizer(Block):
    """The update rule; ``momentum`` belongs to sgd. Betas, eps and weight decay are fields of the recipe."""

    name: Literal["adamw", "adamw_offload", "adamw_8bit", "sgd"] = "adamw"
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0


class Looks(Block):
    """When the held-out suites are asked: every so many steps and at the last one.

    The first suite carries the damage stop; the others are asked in full and reported. Under eprocess ``m`` items of the
    first are drawn afresh at each look (null: a fifth of the pool, at most 200); under the other rules ``m`` is a fixed
    panel (null: all).
    """

    every: Steps
    suites: Annotated[tuple[SuiteName, ...], Field(strict=False, min_length=1, max_length=16)] = ("holdout",)
    m: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    base_runs: Annotated[int, Field(ge=1, le=16)] = 2
    batch_size: BatchSize = 64
    max_completion_length: Length | None = None


class DamageStop(Block):
    """The rule asked at every look. ``rule`` null is chosen by the pool's size. ``points`` are percentage points."""

    rule: Annotated[
        Literal["eprocess", "mcnemar_spending", "threshold"] | None,
        BeforeValidator(_auto_is_null, json_schema_input_type=str | None),
    ] = None
    action: Literal["stop", "warn"] = "stop"
    alpha: Annotated[float, Field(gt=0, le=0.5)] = 0.05
    margin: Annotated[float, Field(ge=0, lt=1)] = 0.01
    watch: Annotated[float, Field(gt=1, le=1e6)] = 5.0
    points: Annotated[float, Field(gt=0, le=100)] = 5.0
    consecutive: Annotated[int, Field(ge=1, le=100)] = 2


def look_steps(max_steps: int, every: int) -> list[int]:
    """Steps that have a look: every so many, and the last one."""
    steps = list(range(every, max_steps + 1, every))
    return steps if steps and steps[-1] == max_steps else [*steps, max_steps]


LORA_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def _lora_targets(targets: tuple[str, ...]) -> tuple[str, ...]:
    if targets == ("all-linear",):
        return targets
    for target in targets:
        if target not in LORA_TARGETS:
            raise refuse(
                f"{target!r} is not a linear map of a layer",
                f"{did_you_mean(target, LORA_TARGETS)}allowed: {allowed(LORA_TARGETS)}, or all-linear alone",
            )
    if len(set(targets)) < len(targets):
        raise refuse("a target is written twice", "name each map once")
    return targets


class Lora(Block):
    """Low-rank adapters instead of all parameters, on all linear maps of the layers or on those named.

    ``quantize`` nf4 stores the maps that are not trained in four bits (QLoRA).
    """

    r: Annotated[int, Field(ge=1, le=4096)]
    alpha: Annotated[float, Field(gt=0, le=65_536)] = 32.0
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    targets: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=64)], ...],
        Field(strict=False, min_length=1),
        AfterValidator(_lora_targets),
    ] = ("all-linear",)
    quantize: Literal["none", "nf4"] = "none"


class Save(Block):
    """Checkpoints every so many steps; ``keep`` the newest so many, or all (a trajectory needs all).

    With ``optimizer`` false the newest alone keeps its optimizer state, by which the run can continue.
    """

    every: Steps = 20
    keep: Annotated[int | Literal["all"], BeforeValidator(_keep, json_schema_input_type=int | str)] = "all"
    optimizer: bool = True


class Stop(Block):
    """Reasons to end early as succeeded: hours, a held-out accuracy reached, looks without a new best."""

    max_hours: Annotated[float, Field(gt=0, le=10_000)] | None = None
    target: Annotated[float, Field(gt=0, le=1)] | None = None
    patience: Annotated[int, Field(ge=1, le=10_000)] | None = None


# A bare name or integer stands for the block's main field.
AlgorithmField = Annotated[Algorithm, BeforeValidator(expand(str, "name"), json_schema_input_type=str | Algorithm)]
DataField = Annotated[Data, BeforeValidator(expand(str, "dataset"), json_schema_input_type=str | Data)]
OptimizerField = Annotated[Optimizer, BeforeValidator(expand(str, "name"), json_schema_input_type=str | Optimizer)]
LooksField = Annotated[Looks, BeforeValidator(expand(int, "every"), json_schema_input_type=int | Looks)]
DamageStopField = Annotated[DamageStop, BeforeValidator(expand(str, "rule"), json_schema_input_type=str | DamageStop)]
SaveField = Annotated[Save, BeforeValidator(expand(int, "every"), json_schema_input_type=int | Save)]


class TrainRecipe(Block):
    """One training run. A step is one rollout batch and its updates; an update is one optimizer step."""

    kind: Literal["train"]
    name: Name | None = None
    model: ModelRef
    algorithm: AlgorithmField = Algorithm()
    data: DataField
    prompt: Prompt = Prompt()
    rewards: Rewards = Field(default_factory=default_rewards)
    outcome_gate: bool = False

    max_steps: Steps
    prompts_per_step: Count
    num_generations: Annotated[int, Field(ge=1, le=4096)]
    prompts_per_update: Count = Field(default_factory=lambda data: data.get("prompts_per_step", 1))
    micro_batch_tokens: Annotated[int, Field(ge=1, le=1 << 24)] | None = None
    logit_chunk_tokens: Annotated[int, Field(ge=1, le=1 << 20)] = 1024

    max_prompt_length: Length = 1024
    max_completion_length: Length
    # Logits divided by less leave the range of float32 and the run would blame the weights.
    temperature: Annotated[float, Field(ge=0.01, le=10)] = 1.0

    learning_rate: Annotated[float, Field(ge=0, le=100)] = 1e-6
    lr_schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup_updates: Annotated[int, Field(ge=0, le=10_000_000)] = 0
    weight_decay: Annotated[float, Field(ge=0, le=10)] = 0.0
    adam_beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    adam_beta2: Annotated[float, Field(ge=0, lt=1)] = 0.999
    adam_eps: Annotated[float, Field(gt=0, le=1)] = 1e-8
    max_grad_norm: Annotated[float, Field(gt=0, le=1e9)] = 1.0
    optimizer: OptimizerField = Optimizer()
    lora: Annotated[Lora | None, BeforeValidator(false_is_null)] = None

    device: Device = Device()
    dtype: Dtype = Field(default_factory=default_dtype)
    engine: Engine = "auto"

    looks: Annotated[LooksField | None, BeforeValidator(false_is_null)] = None
    damage_stop: Annotated[DamageStopField | None, BeforeValidator(_off_is_null)] = None
    regrounding: Annotated[Regrounding | None, BeforeValidator(false_is_null)] = None
    linearity: Annotated[Literal["off", "live"], BeforeValidator(_linearity)] = "off"
    save: SaveField = Save()
    stop: Annotated[Stop | None, BeforeValidator(false_is_null)] = None
    nonfinite_limit: Annotated[int, Field(ge=1, le=10_000)] = 3

    seed: Seed = 0
    tags: Tags = ()
    priority: Priority = 0
    after: After = ()
    max_attempts: Attempts = 3

    @model_validator(mode="before")
    @classmethod
    def _one_solution(cls, value: Any) -> Any:
        """A supervised recipe need not say that a prompt has one solution."""
        if isinstance(value, Mapping) and "num_generations" not in value and names_supervised(value.get("algorithm")):
            return {**value, "num_generations": 1}
        return value

    @property
    def prompts_reserved(self) -> int:
        """Prompts that one step reserves in the order of the epoch; with dynamic sampling more than it learns from."""
        dynamic = self.algorithm.dynamic_sampling
        return self.prompts_per_step * (1 if dynamic is None else dynamic.max_rounds)

    @property
    def updates_per_step(self) -> int:
        """Optimizer steps per rollout batch."""
        return self.prompts_per_step // self.prompts_per_update
