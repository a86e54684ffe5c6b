"""One training step: sample, grade, weigh, update, record. A finished step is one transaction.

The order of steps, checkpoints and looks is the loop's; what an update does to the weights is ``update``'s.
"""

import resource
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from time import monotonic
from typing import Any

import torch
from torch import Tensor

from core.engines.base import Engine, SamplingParams, require_version
from core.jobs import RunContext
from core.recipes import TrainRecipe
from core.rl.advantages import AdvantageResult
from core.rl.packing import plan_micro_batches
from core.rl.schedule import learning_rate
from core.rl.statistics import TokenStats
from core.store import events, metrics, prompts, rollouts, runs
from core.tasks.answers import Answer
from core.tasks.pool import VerifierPool
from core.tasks.rewards import Reward, RewardSpec, failed_terms, grade_samples
from core.train.algorithm import advantages_of, objective_of
from core.train.curves import SampleFacts, completion_curves, reward_curves
from core.train.early import early_curves
from core.train.policy import Policy
from core.train.prepare import Prepared
from core.train.rollouts import Sample, sample_step
from core.train.update import MicroBatch, TrainSequence, UpdateResult, build_micro_batches, score, update
from core.train.versions import weights_version


@dataclass(frozen=True)
class StepResult:
    """The step's updates: for each whether its gradient was finite (None where no token survived)."""

    finite: tuple[bool | None, ...]

    def nonfinite_in_a_row(self, before: int) -> int:
        """Count the updates in a row, the step's last included, that were skipped for a gradient that is not finite."""
        count = before
        for finite in self.finite:
            count = count + 1 if finite is False else 0 if finite else count
        return count


class StepRunner:
    """Runs steps of one attempt. Everything it needs to know of earlier steps is in the policy's weights."""

    def __init__(
        self,
        context: RunContext,
        recipe: TrainRecipe,
        policy: Policy,
        prepared: Prepared,
        *,
        engine: Engine,
        params: SamplingParams,
        decode: Callable[[Sequence[int]], str],
        pool: VerifierPool,
        micro_batch_tokens: int,
        rewards: RewardSpec,
    ) -> None:
        self._context = context
        self._recipe = recipe
        self._policy = policy
        self._prepared = prepared
        self._engine = engine
        self._params = params
        self._decode = decode
        self._pool = pool
        self._micro_batch_tokens = micro_batch_tokens
        self._objective = objective_of(recipe.algorithm)
        self._rewards = rewards
        self._grading_s = 0.0

    def run(self, step: int) -> StepResult | None:
        """Run one step and record it; None when it was asked to end before the weights changed."""
        began = monotonic()
        samples = self._sample(step)
        if self._context.control.requested is not None:
            return None
        advantage = advantages_of(
            self._recipe.algorithm,
            [sample.reward.total for sample in samples],
            [sample.group for sample in samples],
            [len(sample.completion.token_ids) if self._in_loss(sample) else 0 for sample in samples],
        )
        sequences = self._sequences(samples, advantage)
        ready = monotonic()
        self._engine.sleep()
        asleep = monotonic()
        results, logp = self._update(sequences, step)
        _wait_for(self._policy.device)
        updated = monotonic()
        self._engine.update_weights(weights_version(self._recipe, step))
        handed_over = monotonic()
        values = self._curves(samples, results, logp, step)
        values |= _resources(self._policy.device)
        tokens = sum(len(sample.completion.token_ids) for sample in samples)
        took = monotonic() - began
        values |= {"step_time": took, "tokens_per_s": tokens / took}
        values |= {
            "time/rollout": ready - began - self._grading_s,
            "time/grading": self._grading_s,
            "time/update": updated - asleep,
            "time/handover": asleep - ready + handed_over - updated,
        }
        self._record(step, samples, advantage=advantage, logp=logp, values=values, results=results)
        return StepResult(tuple(None if result.step is None else result.step.applied for result in results))

    def _sample(self, step: int) -> list[Sample]:
        if self._recipe.regrounding is None:  # a jump gives the weights of a step another number
            require_version(self._engine, step - 1)
        indices = self._prepared.sampler.prompts_for_step(step, self._recipe.prompts_per_step)
        items = [self._prepared.train[index] for index in indices]
        return sample_step(
            self._engine,
            [(item, self._prepared.render(item)) for item in items],
            step=step,
            seed=self._recipe.seed,
            num_generations=self._recipe.num_generations,
            params=self._params,
            decode=self._decode,
            grade=lambda answers: self._grade(answers, step),
        )

    def _grade(self, answers: Sequence[Answer], step: int) -> list[Reward]:
        began = monotonic()
        rewards = grade_samples(self._rewards, self._pool, answers, step=step)
        self._grading_s = monotonic() - began
        return rewards

    def _in_loss(self, sample: Sample) -> bool:
        return not (self._recipe.algorithm.mask_truncated and sample.truncated)

    def _sequences(self, samples: Sequence[Sample], advantage: AdvantageResult) -> list[TrainSequence]:
        return [
            TrainSequence(
                sample.prompt.token_ids,
                sample.completion.token_ids,
                float(advantage.advantages_B[place]),
                counts=bool(advantage.valid_B[place]) and self._in_loss(sample),
            )
            for place, sample in enumerate(samples)
        ]

    def _update(self, sequences: Sequence[TrainSequence], step: int) -> tuple[list[UpdateResult], list[Tensor]]:
        """Take the step's updates; also return each sequence's log-probs [T] at the rollout's weights."""
        recipe, policy = self._recipe, self._policy
        per_update = recipe.prompts_per_update * recipe.num_generations
        parts = [sequences[start : start + per_update] for start in range(0, len(sequences), per_update)]
        batches = [self._layout(part) for part in parts]
        # With one update the rollout's weights are the current ones: the update itself then gives the old log-probs.
        once = len(parts) == 1
        # Samples taken out of the loss are not scored by it, so their log-probs need a pass of their own for the record.
        scored = not once or not all(sequence.counts for sequence in sequences)
        whole = [score(policy.body, policy.head, part) for part in batches] if scored else None
        reference = [score(policy.reference_body, policy.reference_head, part) for part in batches]
        results: list[UpdateResult] = []
        with policy.training():
            for place, part in enumerate(parts):
                results.append(
                    update(
                        policy.body,
                        policy.head,
                        policy.optimizer,
                        part,
                        batches[place],
                        objective=self._objective,
                        lr=self._learning_rate(step, place),
                        max_grad_norm=recipe.max_grad_norm,
                        old_logp=None if once or whole is None else whole[place],
                        ref_logp=reference[place],
                    )
                )
        rollout_logp = whole if whole is not None else [list(result.logp) for result in results]
        per_sequence: list[Tensor] = []
        for part, layout, found in zip(parts, batches, rollout_logp, strict=True):
            per_sequence += _by_sequence(len(part), layout, found)
        return results, per_sequence

    def _layout(self, part: Sequence[TrainSequence]) -> list[MicroBatch]:
        plan = plan_micro_batches([sequence.tokens for sequence in part], self._micro_batch_tokens)
        return build_micro_batches(part, plan, self._policy.device)

    def _learning_rate(self, step: int, place: int) -> float:
        """The rate of a step's update at ``place``, from 0. Its number follows from the step, skipped updates included."""
        recipe = self._recipe
        return learning_rate(
            recipe.lr_schedule,
            recipe.learning_rate,
            (step - 1) * recipe.updates_per_step + place + 1,
            total=recipe.max_steps * recipe.updates_per_step,
            warmup=recipe.warmup_updates,
        )

    def _curves(
        self, samples: Sequence[Sample], results: Sequence[UpdateResult], logp: Sequence[Tensor], step: int
    ) -> dict[str, float]:
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
        stats = sum((result.stats for result in results), TokenStats())
        steps = [result.step for result in results if result.step is not None]
        means = stats.means()
        values = reward_curves(facts) | completion_curves(facts) | early_curves(facts)
        values |= {
            "loss": fmean(result.loss for result in results),
            "lr": self._learning_rate(step, len(results) - 1),
            "weights/changed_share": self._policy.changed_share(),
            "updates/skipped": float(sum(not step.applied for step in steps) + len(results) - len(steps)),
            "sampling/logp_gap": _logp_gap(samples, logp),
        }
        if steps:
            values["grad_norm"] = fmean(step.grad_norm for step in steps)
        if means:
            values |= {
                "entropy": means["entropy"],
                "kl": means["ref_kl_k3"],
                "clip_ratio/region_mean": means["clip_low"] + means["clip_high"],
            }
        return values

    def _record(
        self,
        step: int,
        samples: Sequence[Sample],
        *,
        advantage: AdvantageResult,
        logp: Sequence[Tensor],
        values: dict[str, float],
        results: Sequence[UpdateResult],
    ) -> None:
        context = self._context
        with context.db.fenced(context.fence) as session:
            prompts.put_many(session, [(s.prompt.sha256, s.prompt.token_ids, s.prompt.text) for s in samples])
            rollouts.add_step(
                session,
                context.fence,
                step,
                [_row(sample, advantage, place, logp[place]) for place, sample in enumerate(samples)],
            )
            metrics.record(session, context.fence, step, values)
            for term, (count, reason) in failed_terms([sample.reward for sample in samples]).items():
                payload = {"step": step, "term": term, "samples": count, "first": reason}
                events.append(session, context.run_id, "reward_failed", payload, context.attempt)
            for result in results:
                if result.step is None or not result.step.applied:
                    payload = {"step": step, "reason": _skip_reason(result)}
                    events.append(session, context.run_id, "update_skipped", payload, context.attempt)
            runs.progress(
                session,
                context.fence,
                phase="train",
                done=step,
                total=self._recipe.max_steps,
                unit="steps",
                step=step,
            )


def _row(sample: Sample, advantage: AdvantageResult, place: int, logp_T: Tensor) -> dict[str, Any]:
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
        "advantage": float(advantage.advantages_B[place]),
        "logp_mean": float(logp_T.double().mean()),
        "n_tokens": len(sample.completion.token_ids),
        "finish_reason": sample.completion.finish_reason,
        "zero_variance": bool(advantage.zero_variance_B[place]),
        "weights_version": sample.completion.weights_version,
    }


def _skip_reason(result: UpdateResult) -> str:
    if result.step is None:
        return "no token survived: every sample was masked or had no verdict"
    names = ", ".join(result.step.nonfinite[:3])
    return f"gradient norm {result.step.grad_norm}; not finite in {len(result.step.nonfinite)} tensors, first: {names}"


def _by_sequence(count: int, layout: Sequence[MicroBatch], found: Sequence[Tensor]) -> list[Tensor]:
    """Cut each micro-batch's log-probs into sequences and put these in their original order."""
    ordered: dict[int, Tensor] = {}
    for batch, logp_T in zip(layout, found, strict=True):
        ordered |= dict(zip(batch.indices, torch.split(logp_T.detach().cpu(), list(batch.lengths)), strict=True))
    return [ordered[place] for place in range(count)]


def _logp_gap(samples: Sequence[Sample], logp: Sequence[Tensor]) -> float:
    """Mean absolute difference per token between the trainer's and the engine's log-probs, both at the sampling temperature."""
    total, tokens = 0.0, 0
    for sample, logp_T in zip(samples, logp, strict=True):
        engine_T = torch.tensor(sample.completion.logprobs, dtype=torch.float64)
        total += float((logp_T.double() - engine_T).abs().sum())
        tokens += len(sample.completion.token_ids)
    return total / tokens if tokens else 0.0


def _wait_for(device: torch.device) -> None:
    """Let the card finish, so that its time is counted where it belongs."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _resources(device: torch.device) -> dict[str, float]:
    """Peak memory of this process so far, in GiB: on a card what torch allocated, on the CPU the resident set."""
    if device.type == "cuda":
        return {"memory/peak_gib": torch.cuda.max_memory_allocated(device) / 2**30}
    return {"memory/peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20}
