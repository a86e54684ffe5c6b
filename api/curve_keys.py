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
    "rewards/invalid": CurveInfo("samples", "Completions without a reward: they could not be judged and are masked."),
    "early/all_right": CurveInfo(
        "share", "Groups in which every completion was right; they give no gradient, and the data may be too easy."
    ),
    "early/all_wrong": CurveInfo(
        "share", "Groups in which every completion was wrong; they give no gradient, and the data may be too hard."
    ),
    "early/pass_at_k": CurveInfo(
        "share", "Groups with at least one right answer. Falling while early/avg_at_k rises: sharper, but less varied."
    ),
    "early/avg_at_k": CurveInfo("share", "Right answers among the step's completions, the mean over groups."),
    "early/distinct_answers": CurveInfo(
        "share", "Different answers per completion of a group, the mean over groups; near 1/k all answers are the same."
    ),
    "early/length_right": CurveInfo("tokens", "Mean length of right completions."),
    "early/length_wrong": CurveInfo(
        "tokens", "Mean length of wrong completions; one that grows alone often means endless thinking."
    ),
    "early/verifier_timeout_share": CurveInfo(
        "share", "Completions on which the grader ran out of time; a rise may mean answers that attack the grader."
    ),
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
    "completions/duplicate_share": CurveInfo(
        "share",
        "Completions that are token for token the same as another of their group; near 1 sampling has collapsed.",
    ),
    "completions/clipped_ratio": CurveInfo("share", "Share of completions cut at the length limit."),
    "sampling/logp_gap": CurveInfo(
        "nats", "Mean absolute gap between the sampler's and the trainer's log-probabilities of the same tokens."
    ),
    "sampling/logp_gap_max": CurveInfo("nats", "The largest such gap of the step."),
    "sampling/mismatch_kl_k1": CurveInfo(
        "nats", "KL divergence from the sampler to the trainer, plain estimate on the samples; it can be negative."
    ),
    "sampling/mismatch_kl_k3": CurveInfo("nats", "The same by the k3 estimator, which is never negative."),
    "sampling/importance_sampling_ratio/mean": CurveInfo(
        "", "Mean importance weight as applied, over tokens; near 1 when sampler and trainer agree."
    ),
    "sampling/importance_sampling_ratio/max": CurveInfo("", "Largest importance ratio before truncating or masking."),
    "sampling/importance_capped_share": CurveInfo(
        "share", "Share of tokens whose importance ratio was above the cap: truncated or masked."
    ),
    "dynamic_sampling/rounds": CurveInfo("rounds", "Rounds of sampling that the step took."),
    "dynamic_sampling/kept_share": CurveInfo(
        "share", "Groups with spread among all that were sampled; the others cost generation and teach nothing."
    ),
    "dynamic_sampling/informative": CurveInfo("groups", "Groups with spread in the step's batch."),
    "dynamic_sampling/unused_tokens_share": CurveInfo(
        "share", "Sampled tokens that the step did not learn from: what dynamic sampling cost."
    ),
    "kl_in_reward/penalty": CurveInfo("score", "Mean of what the KL penalty took from a completion's reward."),
    "ratio/max": CurveInfo("", "Largest probability ratio of a token (gspo: of a sequence) in the step's updates."),
    "nll": CurveInfo("nats", "Cross entropy of the reference solutions, per token, without noise."),
    "tokens": CurveInfo("tokens", "Supervised tokens of the step."),
    "heldout/accuracy": CurveInfo("share", "Greedy accuracy on the look's held-out draw; draws differ by luck."),
    "heldout/delta": CurveInfo("share", "Paired difference of greedy accuracy against base on the same items."),
    "weights/changed_share": CurveInfo("share", "Share of weights that differ from the base model."),
    "linearity/median_r2": CurveInfo(
        "R2", "Median R2 of a sample of weights against the step so far; noise gives much too."
    ),
    "linearity/mean_r2": CurveInfo("R2", "Mean R2 of a sample of weights against the step so far."),
    "linearity/share_above": CurveInfo("share", "Share of sampled weights with R2 above 0.7; read the excess first."),
    "linearity/chance_share_above": CurveInfo(
        "share", "The same share for random walks driven by this run's optimizer and schedule."
    ),
    "linearity/excess": CurveInfo("share", "Share above R2 0.7 beyond what such walks give; about 0 is chance."),
    "early/linearity_breaking": CurveInfo(
        "",
        "1 while the excess over chance has stayed below half of its peak for 5 steps, where that peak was 0.1 or more.",
    ),
    "lr": CurveInfo("", "Learning rate of the step's last update."),
    "regrounding/effective_steps": CurveInfo(
        "steps", "Real steps plus what the jumps so far were worth; a real step is worth 1."
    ),
    "regrounding/n": CurveInfo("steps", "What the jump after this step was worth; 0 where it was decided to stay."),
    "regrounding/moved": CurveInfo("", "Euclidean distance between the weights of the cycle's beginning and its end."),
    "regrounding/decision_s": CurveInfo("s", "Wall time of the jump, its candidates included."),
    "regrounding/validation_before": CurveInfo(
        "share", "Greedy accuracy on the choosing validation items without a jump."
    ),
    "regrounding/validation_after": CurveInfo("share", "The same after the jump that was taken."),
    "time/worked_s": CurveInfo(
        "s",
        "Work of the run until this look was over: all attempts, looks and decisions, start-up not. On a card GPU-seconds.",
    ),
    "step_time": CurveInfo("s", "Wall time of the whole step."),
    "tokens_per_s": CurveInfo("tokens/s", "Sampled tokens per second of step time."),
    "memory/peak_gib": CurveInfo("GiB", "Peak memory of the runner during the step."),
}

_FAMILIES: tuple[tuple[str, CurveInfo], ...] = (
    ("reward/", CurveInfo("score", "Mean of one reward term, before its weight.")),
    (
        "reward_weighted/",
        CurveInfo("score", "Mean of what one term added to the reward: weighted, and behind the gate."),
    ),
    ("reward_failed/", CurveInfo("samples", "Completions for which an own reward function failed to give a number.")),
    ("rewards/", CurveInfo("score", "Mean of one reward term, before its weight.")),
    (
        "linearity/",
        CurveInfo("R2", "How linear the trajectory is so far: coefficient of determination against the step."),
    ),
    ("early/", CurveInfo("", "An early warning: it informs and never stops a run by itself.")),
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
