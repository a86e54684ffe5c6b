"""What each curve is called, its unit and one sentence of help: the table behind ``/curves`` and the page's labels.

Facts only: nothing here reads a curve. A key that a newer runner writes and this table does not know is still served,
with an empty unit and a help text that says so.
"""

from typing import NamedTuple


class CurveInfo(NamedTuple):
    """Unit and help of one curve."""

    unit: str
    help: str


_KEYS: dict[str, CurveInfo] = {
    "reward": CurveInfo("score", "Mean reward of the step's completions, after the recipe's weights."),
    "reward_std": CurveInfo("score", "Mean over groups of the standard deviation of rewards inside a group."),
    "frac_reward_zero_std": CurveInfo(
        "share", "Share of groups whose completions all got one reward; they give no gradient."
    ),
    "frac_reward_all_right": CurveInfo("share", "Share of groups in which every completion was right."),
    "frac_reward_all_wrong": CurveInfo("share", "Share of groups in which every completion was wrong."),
    "loss": CurveInfo("", "The objective that was minimised, over the step's updates."),
    "entropy": CurveInfo("nats", "Mean entropy of the policy's next-token distribution on sampled tokens."),
    "kl": CurveInfo("nats", "Estimated KL divergence from the policy to the base model on sampled tokens."),
    "grad_norm": CurveInfo("", "Global gradient norm before clipping."),
    "clip_ratio/region_mean": CurveInfo("share", "Share of tokens whose probability ratio was clipped."),
    "clip_ratio/low_mean": CurveInfo("share", "Share of tokens clipped at the lower bound."),
    "clip_ratio/high_mean": CurveInfo("share", "Share of tokens clipped at the upper bound."),
    "completions/mean_length": CurveInfo("tokens", "Mean length of the sampled completions."),
    "completions/min_length": CurveInfo("tokens", "Shortest sampled completion."),
    "completions/max_length": CurveInfo("tokens", "Longest sampled completion."),
    "completions/clipped_ratio": CurveInfo("share", "Share of completions cut at the length limit."),
    "sampling/logp_gap": CurveInfo(
        "nats", "Mean absolute gap between the sampler's and the trainer's log-probabilities of the same tokens."
    ),
    "heldout/accuracy": CurveInfo("share", "Greedy accuracy on the look's held-out draw; draws differ by luck."),
    "heldout/delta": CurveInfo("share", "Paired difference of greedy accuracy against base on the same items."),
    "weights/changed_share": CurveInfo("share", "Share of weights that differ from the base model."),
    "lr": CurveInfo("", "Learning rate of the step's last update."),
    "step_time": CurveInfo("s", "Wall time of the whole step."),
    "tokens_per_s": CurveInfo("tokens/s", "Sampled tokens per second of step time."),
    "memory/peak_gib": CurveInfo("GiB", "Peak memory of the runner during the step."),
}

_FAMILIES: tuple[tuple[str, CurveInfo], ...] = (
    ("reward/", CurveInfo("score", "Mean of one reward term, before its weight.")),
    ("rewards/", CurveInfo("score", "Mean of one reward term, before its weight.")),
    (
        "linearity/",
        CurveInfo("R2", "How linear the trajectory is so far: coefficient of determination against the step."),
    ),
    ("early/", CurveInfo("", "An early warning with a prespecified threshold; it never stops a run by itself.")),
    ("time/", CurveInfo("s", "Wall time of one part of the step.")),
    ("sampling/", CurveInfo("", "A comparison of the sampler with the trainer on the same tokens.")),
    ("memory/", CurveInfo("GiB", "Memory of the runner.")),
)

_UNKNOWN = CurveInfo("", "A curve that this version of the service has no description for.")


def describe(key: str) -> CurveInfo:
    """Unit and help of ``key``: its own entry, else its family's, else a text that says there is none."""
    if key in _KEYS:
        return _KEYS[key]
    return next((info for prefix, info in _FAMILIES if key.startswith(prefix)), _UNKNOWN)
