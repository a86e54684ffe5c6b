"""The `algorithm` block of a train recipe: every choice on which public trainers differ, by name.

Defaults are the paper's released script where it sets a value, else verl's. Presets (`dr_grpo`, `dapo`, `gspo`, `sft`) fill
in only what the recipe leaves out. No arithmetic here: `core.rl` does that.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from core.recipes.base import Block, expand, false_is_null
from core.recipes.catalogue import ALGORITHMS
from core.recipes.errors import Problem, allowed, did_you_mean, refuse

AlgorithmName = Literal["grpo", "reinforce_plus_plus", "rloo", "centered", "gspo", "sft", "noisy_sft"]
SUPERVISED = ("sft", "noisy_sft")

# GSPO paper: 3e-4 / 4e-4, and no second clip of negative advantages (verl's gspo loss has none either).
PRESETS: dict[str, dict[str, Any]] = {
    "dr_grpo": {"name": "grpo", "std": "none", "aggregation": "seq_mean_token_sum_norm"},
    "dapo": {
        "name": "grpo",
        "aggregation": "token_mean",
        "clip_low": 0.2,
        "clip_high": 0.28,
        "mask_truncated": True,
        "dynamic_sampling": {"max_rounds": 3},
    },
    "gspo": {"name": "gspo", "clip_low": 3e-4, "clip_high": 4e-4, "dual_clip": None},
    # Cross entropy over all supervised tokens of an update: nothing is averaged per sequence.
    "sft": {"name": "sft", "aggregation": "token_mean"},
    "noisy_sft": {"name": "noisy_sft", "aggregation": "token_mean"},
}


def _std(value: Any) -> Any:
    """``false``, 0, null and "none" all mean no division by the spread."""
    return "none" if value is None or value is False or (isinstance(value, int | float) and value == 0) else value


def _known_name(value: Any) -> Any:
    if isinstance(value, str) and value not in ALGORITHMS:
        raise refuse(
            f"the algorithm {value!r} is not known", f"{did_you_mean(value, ALGORITHMS)}allowed: {allowed(ALGORITHMS)}"
        )
    return value


def _number_is_coef(value: Any) -> Any:
    return {"coef": value} if isinstance(value, int | float) and not isinstance(value, bool) else value


def _text_is_mode(value: Any) -> Any:
    return {"mode": value} if isinstance(value, str) else value


class Kl(Block):
    """KL to the frozen start model: its weight, whether it is in the reward or in the loss, and the estimator.

    The estimator in the loss is k3 (DeepSeekMath), in the reward k1 (verl, TRL): k3 there would be biased.
    """

    coef: Annotated[float, Field(ge=0, le=100)] = 0.0
    in_reward: bool = False
    estimator: Literal["k1", "k2", "k3"] = Field(default_factory=lambda data: "k1" if data.get("in_reward") else "k3")


class ImportanceCorrection(Block):
    """Correction of the rollout engine's log-probs: truncated or masked importance weights."""

    mode: Literal["none", "truncate", "mask"] = "none"
    level: Literal["token", "sequence"] = "token"
    cap: Annotated[float, Field(gt=0, le=1e6)] = 2.0


class DynamicSampling(Block):
    """Replace groups without spread in their rewards by groups of further prompts (DAPO, section 3.2).

    ``max_rounds`` counts the first round too. A step reserves ``max_rounds`` times its prompts in the order of the epoch.
    """

    max_rounds: Annotated[int, Field(ge=2, le=64)] = 3


class Algorithm(Block):
    """Advantage and objective. Options that the named algorithm does not use must keep their defaults."""

    name: Annotated[AlgorithmName, BeforeValidator(_known_name, json_schema_input_type=str)] = "grpo"
    std: Annotated[
        Literal["sample", "population", "none"], BeforeValidator(_std, json_schema_input_type=str | bool | int | None)
    ] = "sample"
    eps: Annotated[float, Field(gt=0, le=1)] = 1e-6
    variance: Literal["unbiased", "population"] = "unbiased"
    baseline: bool = False
    clip_low: Annotated[float, Field(ge=0, le=1)] = 0.2
    clip_high: Annotated[float, Field(ge=0, le=100)] = 0.28
    dual_clip: Annotated[float, Field(gt=1, le=1e6)] | None = 3.0
    aggregation: Literal["seq_mean_token_mean", "token_mean", "seq_mean_token_sum_norm"] = "seq_mean_token_mean"
    norm_length: Annotated[int, Field(ge=1)] | None = None
    kl: Annotated[Kl, BeforeValidator(_number_is_coef, json_schema_input_type=float | Kl)] = Kl()
    entropy_coef: Annotated[float, Field(ge=0, le=10)] = 0.0
    importance_correction: Annotated[
        ImportanceCorrection, BeforeValidator(_text_is_mode, json_schema_input_type=str | ImportanceCorrection)
    ] = ImportanceCorrection()
    mask_truncated: bool = False
    dynamic_sampling: Annotated[
        DynamicSampling | None,
        BeforeValidator(expand(int, "max_rounds"), json_schema_input_type=int | DynamicSampling | None),
        BeforeValidator(false_is_null),
    ] = None
    noise: Literal["token", "sequence"] = "token"
    p: Annotated[float, Field(ge=0, le=1)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _fill_preset(cls, value: Any) -> Any:
        """Replace a preset's name by the algorithm it stands for; what the recipe says itself wins."""
        if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
            return value
        preset = PRESETS.get(value["name"])
        return value if preset is None else {**preset, **value, "name": preset["name"]}

    @property
    def needs_group(self) -> bool:
        """Whether the advantage compares the samples of one prompt."""
        return not self.supervised and (self.name != "reinforce_plus_plus" or self.baseline)

    @property
    def supervised(self) -> bool:
        """Whether reference solutions are learnt instead of sampled completions."""
        return self.name in SUPERVISED


def names_supervised(algorithm: Any) -> bool:
    """Whether the written ``algorithm`` block, of whatever shape, is a supervised one."""
    name = algorithm.get("name") if isinstance(algorithm, Mapping) else algorithm
    return isinstance(name, str) and name in SUPERVISED


_SAMPLED = ("grpo", "reinforce_plus_plus", "rloo", "centered", "gspo")
_USED_BY: dict[str, tuple[str, ...]] = {
    "std": ("grpo", "gspo"),
    "eps": ("grpo", "gspo"),
    "variance": ("reinforce_plus_plus",),
    "baseline": ("reinforce_plus_plus",),
    "clip_low": _SAMPLED,
    "clip_high": _SAMPLED,
    "dual_clip": _SAMPLED,
    "kl": _SAMPLED,
    "entropy_coef": _SAMPLED,
    "importance_correction": _SAMPLED,
    "mask_truncated": _SAMPLED,
    "dynamic_sampling": _SAMPLED,
    "noise": ("noisy_sft",),
    "p": ("noisy_sft",),
}


def algorithm_problems(algorithm: Algorithm) -> list[Problem]:
    """Options that contradict the algorithm or each other."""
    problems = [
        Problem(
            f"algorithm.{option}",
            f"{option} has no effect with {algorithm.name}",
            f"used by {' and '.join(users)}; remove it",
        )
        for option, users in _USED_BY.items()
        if algorithm.name not in users and getattr(algorithm, option) != Algorithm.model_fields[option].default
    ]
    if algorithm.kl.in_reward and not algorithm.kl.coef:
        problems.append(
            Problem("algorithm.kl.in_reward", "in_reward has no effect while kl.coef is 0", "set kl.coef or remove it")
        )
    if algorithm.name == "noisy_sft" and algorithm.p is None:
        problems.append(
            Problem("algorithm.p", "noisy_sft needs p, the probability of a negative sign", "a number from 0 to 1")
        )
    if algorithm.supervised and algorithm.aggregation != "token_mean":
        problems.append(
            Problem(
                "algorithm.aggregation",
                f"{algorithm.name} divides by the number of supervised tokens, so {algorithm.aggregation} does not apply",
                f"leave it out: {algorithm.name} always averages tokens (token_mean)",
            )
        )
    if algorithm.dynamic_sampling is not None and not algorithm.needs_group:
        problems.append(
            Problem(
                "algorithm.dynamic_sampling",
                f"{algorithm.name} without baseline learns from groups without spread too, so none is replaced",
                "remove it, or set baseline to true",
            )
        )
    if algorithm.name == "gspo" and algorithm.aggregation != "seq_mean_token_mean":
        problems.append(
            Problem(
                "algorithm.aggregation",
                f"gspo has one ratio per sequence, so {algorithm.aggregation} does not apply",
                "leave it out: gspo always averages sequences (seq_mean_token_mean)",
            )
        )
    if algorithm.norm_length is not None and algorithm.aggregation != "seq_mean_token_sum_norm":
        problems.append(
            Problem(
                "algorithm.norm_length",
                f"norm_length has no effect with aggregation {algorithm.aggregation}",
                "set aggregation to seq_mean_token_sum_norm or remove norm_length",
            )
        )
    return problems
