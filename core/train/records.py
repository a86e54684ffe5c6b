"""What a finished step leaves behind: its curves, its samples, and an event for every update that changed nothing.

Everything here runs inside the one transaction of the step or computes what goes into it.
"""

import resource
from collections.abc import Sequence
from statistics import fmean
from typing import Any

import torch
from sqlalchemy.orm import Session
from torch import Tensor

from core.jobs import RunContext
from core.recipes import TrainRecipe
from core.rl.statistics import TokenStats
from core.store import events, runs
from core.train.curves import SampleFacts, completion_curves, reward_curves
from core.train.early import early_curves
from core.train.policy import Policy
from core.train.rollouts import Sample
from core.train.update import UpdateResult
from core.train.weighing import Weighed


def sample_curves(samples: Sequence[Sample]) -> dict[str, float]:
    """Curves of all samples that a step drew, whether or not it learnt from them."""
    facts = [
        SampleFacts(
            sample.group,
            sample.reward.total,
            sample.reward.terms,
            len(sample.completion.token_ids),
            sample.truncated,
            weighted=sample.reward.weighted,
            failed=tuple(sample.reward.failures),
            verdict=sample.reward.verdict.verdict.value,
            extracted=sample.reward.verdict.extracted,
        )
        for sample in samples
    ]
    values = reward_curves(facts) | completion_curves(facts) | early_curves(facts)
    return values | {"completions/duplicate_share": _duplicate_share(samples)}


def _duplicate_share(samples: Sequence[Sample]) -> float:
    """Share of completions whose tokens an earlier one of the same group has too."""
    distinct = {(sample.group, sample.completion.token_ids) for sample in samples}
    return 1.0 - len(distinct) / len(samples) if samples else 0.0


def update_curves(results: Sequence[UpdateResult], policy: Policy, lr: float) -> dict[str, float]:
    """Curves of a step's updates; ``lr`` is the last one's rate. A loss or norm that is not finite is passed on as it is."""
    steps = [result.step for result in results if result.step is not None]
    means = token_means(results)
    values = {
        "loss": fmean(result.loss for result in results),
        "lr": lr,
        "weights/changed_share": policy.changed_share(),
        "updates/skipped": float(sum(not step.applied for step in steps) + len(results) - len(steps)),
    }
    if steps:
        values["grad_norm"] = fmean(step.grad_norm for step in steps)
    if means:
        values["entropy"] = means["entropy"]
    return values


def policy_curves(results: Sequence[UpdateResult]) -> dict[str, float]:
    """Curves of ratios and of the distance from the start model; none when no token survived."""
    means = token_means(results)
    if not means:
        return {}
    return {
        "kl": means["ref_kl_k3"],
        "clip_ratio/region_mean": means["clip_low"] + means["clip_high"],
        "clip_ratio/low_mean": means["clip_low"],
        "clip_ratio/high_mean": means["clip_high"],
        "ratio/max": means["ratio_max"],
    }


def token_means(results: Sequence[UpdateResult]) -> dict[str, float]:
    """Means over the tokens of all updates together; empty when no token survived."""
    return sum((result.stats for result in results), TokenStats()).means()


def penalty_curves(weighed: Weighed) -> dict[str, float]:
    """What the KL in the reward took from each sample, the mean; none where it is not in the reward."""
    if not weighed.kl_penalty:
        return {}
    return {"kl_in_reward/penalty": fmean(weighed.kl_penalty)}


def used_row(sample: Sample, weighed: Weighed, place: int, logp_T: Tensor) -> dict[str, Any]:
    """The stored row of a sample that the step learnt from, the ``place``-th of its batch."""
    return _row(sample) | {
        "advantage": float(weighed.result.advantages_B[place]),
        "logp_mean": float(logp_T.double().mean()),
        "zero_variance": bool(weighed.result.zero_variance_B[place]),
    }


def spare_row(sample: Sample) -> dict[str, Any]:
    """The stored row of a sample that dynamic sampling left out: its group gave no gradient."""
    return _row(sample) | {"used": False, "zero_variance": True}


def _row(sample: Sample) -> dict[str, Any]:
    verdict = sample.reward.verdict
    return {
        "group_index": sample.group,
        "item_id": sample.item.id,
        "sample": sample.sample,
        "prompt_sha256": sample.prompt.sha256,
        "token_ids": list(sample.completion.token_ids),
        "text": sample.text,
        "reward": sample.reward.total,
        "reward_terms": dict(sample.reward.terms),
        "verdict": None if verdict is None else verdict.verdict.value,
        "reason": None if verdict is None else verdict.reason,
        "extracted": None if verdict is None else verdict.extracted,
        "n_tokens": len(sample.completion.token_ids),
        "finish_reason": sample.completion.finish_reason,
        "weights_version": sample.completion.weights_version,
    }


def close_step(
    session: Session, context: RunContext, recipe: TrainRecipe, step: int, results: Sequence[UpdateResult]
) -> None:
    """Record the updates that were skipped, and that the step is over."""
    for result in results:
        if result.step is None or not result.step.applied:
            payload = {"step": step, "reason": _skip_reason(result)}
            events.append(session, context.run_id, "update_skipped", payload, context.attempt)
    runs.progress(session, context.fence, phase="train", done=step, total=recipe.max_steps, unit="steps", step=step)


def _skip_reason(result: UpdateResult) -> str:
    if result.step is None:
        return "no token survived: every sample was masked or had no verdict"
    names = ", ".join(result.step.nonfinite[:3])
    return f"gradient norm {result.step.grad_norm}; not finite: {len(result.step.nonfinite)} in all, first: {names}"


def wait_for(device: torch.device) -> None:
    """Let the card finish, so that its time is counted where it belongs."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peak_memory(device: torch.device) -> dict[str, float]:
    """Peak memory of this process so far, in GiB: on a card what torch allocated, on the CPU the resident set."""
    if device.type == "cuda":
        return {"memory/peak_gib": torch.cuda.max_memory_allocated(device) / 2**30}
    return {"memory/peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20}
