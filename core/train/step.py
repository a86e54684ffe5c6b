"""One training step: sample, grade, weigh, update, record. A finished step is one transaction.

The order of steps, checkpoints and looks is the loop's; which groups are drawn is ``drawing``'s, what the updates do to the
weights ``updates``', what is recorded ``records``'.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic

from torch import Tensor

from core.engines.base import Engine, SamplingParams, require_version
from core.jobs import RunContext
from core.recipes import TrainRecipe
from core.store import events, metrics, prompts, rollouts
from core.tasks.answers import Answer
from core.tasks.pool import VerifierPool
from core.tasks.rewards import Reward, RewardSpec, failed_terms, grade_samples
from core.train import records
from core.train.drawing import Drawn, draw, in_pieces
from core.train.policy import Policy
from core.train.prepare import Prepared
from core.train.rollouts import Sample, sample_step
from core.train.update import TrainSequence
from core.train.updates import Taken, Updater
from core.train.versions import weights_version
from core.train.weighing import Weighed, importance_curves, mismatch_curves, weigh

# Samples handed to an engine in one call; between two calls a step can be asked to end. The transformers engine decodes so
# many together; one that batches continuously gets more, so that the end of a piece, when few are left, comes seldom.
_PIECE, _CONTINUOUS_PIECE = 64, 1024


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
        self._updater = Updater(recipe, policy, micro_batch_tokens)
        self._rewards = rewards
        self._grading_s = 0.0

    def run(self, step: int) -> StepResult | None:
        """Run one step and record it; None when it was asked to end before the weights changed."""
        began = monotonic()
        self._grading_s = 0.0
        drawn = self._draw(step)
        if drawn is None or self._context.control.requested is not None:
            return None
        ready = monotonic()
        self._engine.sleep()
        asleep = monotonic()
        taken = self._update(drawn.used, step)
        records.wait_for(self._policy.device)
        updated = monotonic()
        self._engine.update_weights(weights_version(self._recipe, step))
        handed_over = monotonic()
        values = self._curves(drawn, taken, step)
        tokens = sum(len(sample.completion.token_ids) for sample in drawn.everything)
        took = monotonic() - began
        values |= {"step_time": took, "tokens_per_s": tokens / took}
        values |= {
            "time/rollout": ready - began - self._grading_s,
            "time/grading": self._grading_s,
            "time/update": updated - asleep,
            "time/handover": asleep - ready + handed_over - updated,
        }
        self._record(step, drawn, taken, values)
        return StepResult(tuple(None if result.step is None else result.step.applied for result in taken.results))

    def _draw(self, step: int) -> Drawn | None:
        if self._recipe.regrounding is None:  # a jump gives the weights of a step another number
            require_version(self._engine, step - 1)
        window = self._prepared.sampler.prompts_for_step(step, self._recipe.prompts_reserved)
        samples = _CONTINUOUS_PIECE if self._engine.settings()["engine"] == "vllm" else _PIECE
        piece = max(1, samples // self._recipe.num_generations)
        return draw(
            self._recipe,
            lambda places: in_pieces(
                places,
                piece,
                lambda part: self._sample(window, part, step),
                lambda: self._context.control.requested is not None,
            ),
        )

    def _sample(self, window: Sequence[int], places: range, step: int) -> list[Sample]:
        """Sample and grade the prompts at ``places`` of the step's window in one call of the engine."""
        items = [self._prepared.train[window[place]] for place in places]
        first = places.start * self._recipe.num_generations
        return sample_step(
            self._engine,
            [(item, self._prepared.render(item)) for item in items],
            step=step,
            seed=self._recipe.seed,
            num_generations=self._recipe.num_generations,
            params=self._params,
            decode=self._decode,
            grade=lambda answers: self._grade(answers, step, first),
        )

    def _grade(self, answers: Sequence[Answer], step: int, first: int) -> list[Reward]:
        began = monotonic()
        rewards = grade_samples(self._rewards, self._pool, answers, step=step, first=first)
        self._grading_s += monotonic() - began
        return rewards

    def _in_loss(self, sample: Sample) -> bool:
        return not (self._recipe.algorithm.mask_truncated and sample.truncated)

    def _update(self, samples: Sequence[Sample], step: int) -> Taken:
        sequences = [
            TrainSequence(
                sample.prompt.token_ids,
                sample.completion.token_ids,
                advantage=0.0,  # filled in once the samples are weighed
                counts=sample.reward.total is not None and self._in_loss(sample),
            )
            for sample in samples
        ]

        def weighed(logp: Sequence[Tensor] | None, ref_logp: Sequence[Tensor] | None) -> Weighed:
            return weigh(
                self._recipe.algorithm,
                [sample.reward.total for sample in samples],
                [sample.group for sample in samples],
                [len(sample.completion.token_ids) if self._in_loss(sample) else 0 for sample in samples],
                logp=logp,
                ref_logp=ref_logp,
            )

        engine_logp = [sample.completion.logprobs for sample in samples]
        return self._updater.take(sequences, step, engine_logp=engine_logp, weigh=weighed)

    def _curves(self, drawn: Drawn, taken: Taken, step: int) -> dict[str, float]:
        lr = self._updater.learning_rate(step, len(taken.results) - 1)
        values = records.sample_curves(drawn.everything)
        values |= records.update_curves(taken.results, self._policy, lr)
        values |= records.policy_curves(taken.results)
        values |= records.penalty_curves(taken.weighed)
        values |= mismatch_curves(taken.logp, [sample.completion.logprobs for sample in drawn.used])
        values |= importance_curves(taken.importance)
        if self._recipe.algorithm.dynamic_sampling is not None:
            values |= drawn.curves()
        return values | records.peak_memory(self._policy.device)

    def _record(self, step: int, drawn: Drawn, taken: Taken, values: dict[str, float]) -> None:
        context, samples = self._context, drawn.everything
        rows = [
            records.used_row(sample, taken.weighed, place, taken.logp[place]) for place, sample in enumerate(drawn.used)
        ]
        with context.db.fenced(context.fence) as session:
            prompts.put_many(session, [(s.prompt.sha256, s.prompt.token_ids, s.prompt.text) for s in samples])
            rollouts.add_step(session, context.fence, step, [*rows, *map(records.spare_row, drawn.spare)])
            metrics.record(session, context.fence, step, values)
            for term, (count, reason) in failed_terms([sample.reward for sample in samples]).items():
                payload = {"step": step, "term": term, "samples": count, "first": reason}
                events.append(session, context.run_id, "reward_failed", payload, context.attempt)
            records.close_step(session, context, self._recipe, step, taken.results)
