"""One step of supervised learning: the step's prompts with their reference solutions, learnt by token cross entropy.

A step is ``prompts_per_step`` items in the order of the epoch and its updates, as with rollouts, so looks, damage stop,
checkpoints and analyses mean the same. Nothing is sampled and no sample is stored; the engine serves the looks alone.
"""

from collections.abc import Callable, Sequence
from time import monotonic

from core.engines.base import Engine
from core.jobs import RunContext
from core.recipes import TrainRecipe
from core.store import metrics
from core.tasks.items import Item
from core.train import records
from core.train.policy import Policy
from core.train.prepare import Prepared
from core.train.solutions import noise_signs
from core.train.step import StepResult
from core.train.update import TrainSequence, UpdateResult
from core.train.updates import Updater
from core.train.versions import weights_version


class SupervisedRunner:
    """Runs steps of one attempt of a supervised recipe."""

    def __init__(
        self,
        context: RunContext,
        recipe: TrainRecipe,
        policy: Policy,
        prepared: Prepared,
        *,
        engine: Engine,
        micro_batch_tokens: int,
    ) -> None:
        if prepared.solve is None:
            raise ValueError("a supervised recipe needs items that were prepared with their solutions")
        self._context = context
        self._recipe = recipe
        self._policy = policy
        self._prepared = prepared
        self._solve: Callable[[Item], tuple[int, ...]] = prepared.solve
        self._engine = engine
        self._updater = Updater(recipe, policy, micro_batch_tokens)

    def run(self, step: int) -> StepResult | None:
        """Learn the step's solutions and record it; None when it was asked to end before the weights changed."""
        if self._context.control.requested is not None:
            return None
        began = monotonic()
        self._engine.sleep()
        sequences = self._sequences(step)
        results = self._updater.learn(sequences, step)
        records.wait_for(self._policy.device)
        updated = monotonic()
        self._engine.update_weights(weights_version(self._recipe, step))
        values = self._curves(sequences, results, step)
        took = monotonic() - began
        values |= {"step_time": took, "tokens_per_s": values["tokens"] / took, "time/update": updated - began}
        with self._context.db.fenced(self._context.fence) as session:
            metrics.record(session, self._context.fence, step, values)
            records.close_step(session, self._context, self._recipe, step, results)
        return StepResult(tuple(None if result.step is None else result.step.applied for result in results))

    def _sequences(self, step: int) -> list[TrainSequence]:
        indices = self._prepared.sampler.prompts_for_step(step, self._recipe.prompts_per_step)
        items = [self._prepared.train[index] for index in indices]
        solutions = [self._solve(item) for item in items]
        signs = noise_signs(
            self._recipe.algorithm,
            [len(ids) for ids in solutions],
            [item.id for item in items],
            seed=self._recipe.seed,
            step=step,
        )
        return [
            TrainSequence(self._prepared.render(item).token_ids, ids, advantage=1.0, token_advantages=sign)
            for item, ids, sign in zip(items, solutions, signs, strict=True)
        ]

    def _curves(
        self, sequences: Sequence[TrainSequence], results: Sequence[UpdateResult], step: int
    ) -> dict[str, float]:
        lengths = [len(sequence.completion_ids) for sequence in sequences]
        values = records.update_curves(results, self._policy, self._updater.learning_rate(step, len(results) - 1))
        means = records.token_means(results)
        if means:
            values["nll"] = -means["logp"]
        values |= {
            "tokens": float(sum(lengths)),
            "completions/mean_length": sum(lengths) / len(lengths),
            "completions/max_length": float(max(lengths)),
        }
        return values | records.peak_memory(self._policy.device)
