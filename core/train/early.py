"""Early warnings that one step's rollouts give for nothing: curves under ``early/``. Pure arithmetic on numbers.

They inform and never stop a run. Other early warnings (entropy, gradient norm, log-prob gap, KL) are curves of their own.
"""

from collections.abc import Sequence
from statistics import fmean

from core.tasks.verifiers.verdict import Outcome
from core.train.curves import SampleFacts


def early_curves(samples: Sequence[SampleFacts]) -> dict[str, float]:
    """Curves of one step's samples; those for which there is no sample are left out.

    ``all_right`` and ``all_wrong`` are shares of groups, ``pass_at_k`` the share with at least one right answer and
    ``avg_at_k`` the mean share of right answers (k is the group's size), ``distinct_answers`` the mean over groups of
    different extracted answers per answer, lengths are means in tokens, and ``verifier_timeout_share`` is over samples.
    Samples that could not be judged count in the last only.
    """
    values: dict[str, float] = {}
    judged = [sample for sample in samples if sample.verdict != Outcome.INFRA_ERROR]
    groups: dict[int, list[SampleFacts]] = {}
    for sample in judged:
        groups.setdefault(sample.group, []).append(sample)
    rates = [fmean(_right(sample) for sample in group) for group in groups.values()]
    if rates:
        values["early/all_right"] = fmean(rate == 1 for rate in rates)
        values["early/all_wrong"] = fmean(rate == 0 for rate in rates)
        values["early/pass_at_k"] = fmean(rate > 0 for rate in rates)
        values["early/avg_at_k"] = fmean(rates)
        values["early/distinct_answers"] = fmean(_distinct(group) for group in groups.values())
    for name, wanted in (("right", True), ("wrong", False)):
        lengths = [sample.tokens for sample in judged if _right(sample) is wanted]
        if lengths:
            values[f"early/length_{name}"] = fmean(lengths)
    if samples:
        values["early/verifier_timeout_share"] = fmean(sample.verdict == Outcome.TIMEOUT for sample in samples)
    return values


def _right(sample: SampleFacts) -> bool:
    return sample.verdict == Outcome.CORRECT


def _distinct(group: Sequence[SampleFacts]) -> float:
    """Different answers per sample of the group; samples without an answer together count as one more."""
    return len({sample.extracted for sample in group}) / len(group)
