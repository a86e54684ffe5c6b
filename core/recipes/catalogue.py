"""What the service knows by name: data sets, suites, verifiers, reward terms, algorithms, analyses (models: `models`).

Plain facts only. Files are names inside the operator's items folder; nothing here opens them.
"""

from dataclasses import dataclass

from core.recipes.models import MODELS, ModelFacts

__all__ = [
    "ALGORITHMS",
    "ANALYSES",
    "DATASETS",
    "MODELS",
    "OPTIMIZERS",
    "REWARD_TERMS",
    "SUITES",
    "VERIFIERS",
    "DatasetFacts",
    "ModelFacts",
    "SplitFacts",
    "SuiteFacts",
]


@dataclass(frozen=True)
class SplitFacts:
    """One split of a data set: its file and its number of items."""

    file: str
    items: int


@dataclass(frozen=True)
class DatasetFacts:
    """A data set that can be trained on; ``verifier`` grades its items."""

    verifier: str
    splits: dict[str, SplitFacts]


@dataclass(frozen=True)
class SuiteFacts:
    """An evaluation suite: a fixed list of items. ``items`` None: as many as its file holds, since releases differ.

    ``rule`` says how answers are judged where that is more than the verifier's own description.
    """

    verifier: str
    file: str
    items: int | None
    split: str = "test"
    rule: str = ""


VERIFIERS: dict[str, str] = {
    "math": "last \\boxed{} of the completion against the reference answer, by value",
    "reasoning_gym": "the generator's own scorer on the extracted answer; right only at score 1",
    "code": "the item's tests, run in a sandbox",
    "instructions": "the item's instruction checks (IFEval, IFBench)",
}

# Terms that shape or control; verifiers are reward terms too, and `auto` is the data set's own verifier.
SHAPING_TERMS: dict[str, str] = {
    "length": "a penalty that grows with the completion's length",
    "format": "whether the completion states its answer in the asked form",
    "random": "a coin flip from a named stream: the control arm",
}
REWARD_TERMS: tuple[str, ...] = ("auto", *VERIFIERS, *SHAPING_TERMS)

_ASSERTIONS = "every assertion of the item holds; True is not 1"
_OUTPUT = "white space at line ends and blank lines at the end do not count; then each line has the same tokens"
_STRICT = "every instruction of the prompt is followed, strictly; the loose reading is a detail of the verdict"

SUITES: dict[str, SuiteFacts] = {
    "gsm8k": SuiteFacts("math", "gsm8k_test.jsonl", 1319),
    "math500": SuiteFacts("math", "math500.jsonl", 500),
    "aime24": SuiteFacts("math", "aime24.jsonl", 30),
    "aime25": SuiteFacts("math", "aime25.jsonl", 30),
    "amc23": SuiteFacts("math", "amc23.jsonl", 40),
    "minerva": SuiteFacts("math", "minerva_math.jsonl", 272),
    "olympiadbench": SuiteFacts("math", "olympiadbench.jsonl", 675),
    "humaneval": SuiteFacts("code", "humaneval.jsonl", 164, rule=_ASSERTIONS),
    "mbpp": SuiteFacts("code", "mbpp.jsonl", 500, rule=_ASSERTIONS),
    "mbpp_sanitized": SuiteFacts("code", "mbpp_sanitized.jsonl", 427, split="all", rule=_ASSERTIONS),
    "apps_stdio_sample": SuiteFacts("code", "apps_stdio_sample.jsonl", 10, rule=_OUTPUT),
    "livecodebench": SuiteFacts(
        "code", "livecodebench.jsonl", None, rule=f"{_OUTPUT}; decimal numbers by value; functions by their result"
    ),
    "ifeval": SuiteFacts("instructions", "ifeval.jsonl", 541, rule=_STRICT),
    "ifbench": SuiteFacts("instructions", "ifbench.jsonl", 300, rule=_STRICT),
}

DATASETS: dict[str, DatasetFacts] = {
    "gsm8k": DatasetFacts(
        "math",
        {"train": SplitFacts("gsm8k_train.jsonl.gz", 7473), "test": SplitFacts("gsm8k_test.jsonl", 1319)},
    ),
    "math": DatasetFacts("math", {"train": SplitFacts("math_train.jsonl.gz", 7498)}),
    "deepscaler_sub": DatasetFacts("math", {"train": SplitFacts("deepscaler_sub.jsonl", 1208)}),
    "dapo_math_17k": DatasetFacts("math", {"train": SplitFacts("dapo_math_17k.jsonl.gz", 17917)}),
    "dapo_math_en_clean_8k": DatasetFacts("math", {"train": SplitFacts("dapo_math_en_clean_8k.jsonl.gz", 8000)}),
    "mbpp": DatasetFacts(
        "code",
        {
            "train": SplitFacts("mbpp.jsonl", 374),
            "validation": SplitFacts("mbpp.jsonl", 90),
            "test": SplitFacts("mbpp.jsonl", 500),
        },
    ),
}

ALGORITHMS: dict[str, str] = {
    "grpo": "reward minus the group's mean, over the group's standard deviation",
    "reinforce_plus_plus": "per-token returns whitened over the batch; baseline: true subtracts the group's mean first",
    "rloo": "reward minus the mean of the group's other members",
    "centered": "reward minus the group's mean",
    "gspo": "grpo's advantages with one clipped ratio per sequence",
    "dr_grpo": "preset of grpo: std none, aggregation seq_mean_token_sum_norm",
    "dapo": "preset of grpo: token_mean, clip 0.2/0.28, truncated completions masked, dynamic sampling in 3 rounds",
    "sft": "cross entropy on the items' reference solutions; nothing is sampled",
    "noisy_sft": "sft with random signs on tokens, or cut and sign on whole solutions (the paper's C.3)",
}

OPTIMIZERS: dict[str, str] = {
    "adamw": "fp32 masters and moments on the device",
    "adamw_offload": "weights on the device; fp32 masters and moments in pinned host memory",
    "adamw_8bit": "fp32 masters on the device, moments in 8 bit",
    "sgd": "fp32 masters; a momentum buffer when momentum is not 0",
}

ANALYSES: dict[str, str] = {
    "weight_linearity": "R2 of every weight's trajectory against the step, with its random-walk null",
    "token_linearity": "R2 of the log-probability of every token of a probe",
    "logit_linearity": "R2 of the probed token's logit",
    "activation_linearity": "R2 of the hidden states after every layer",
    "extrapolate": "weights on the line through checkpoints: points, a sweep over beta, the choice confirmed",
    "export": "one checkpoint as a bf16 folder, a GGUF file or an adapter, asked its greedy answers again",
    "first_order": "how much of each linear layer's output change is W0 dx, dW x0 and dW dx",
    "gradient_noise": "signal to noise of the group gradients and their cosine with fixed directions, beside chance",
}
