"""All updates of one step: scored at the rollout's weights, weighed, then one optimizer step per mini-batch of prompts.

Mini-batches are cut by prompts before samples are taken out of the loss, so a masked sample moves nothing. Only samples in
the loss are laid out for the updates; the others are scored once, for the record. With one update a step the rollout's
weights are the current ones, and the update itself gives the old log-probs, unless something needs them earlier.

This module knows neither the engine nor the store.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from core.recipes import TrainRecipe
from core.rl.packing import plan_micro_batches
from core.rl.schedule import learning_rate
from core.train.algorithm import objective_of
from core.train.policy import Policy
from core.train.reference import reference_logp
from core.train.update import MicroBatch, TrainSequence, UpdateResult, build_micro_batches, score, update
from core.train.weighing import Importance, Weighed, importance


@dataclass(frozen=True)
class Taken:
    """What the updates of one step did.

    ``logp`` holds each sample's log-probs [T] at the rollout's weights, in the order of the samples.
    """

    results: tuple[UpdateResult, ...]
    logp: tuple[Tensor, ...]
    weighed: Weighed
    importance: Importance | None


# Called with all samples' log-probs under policy and reference where the recipe puts the KL in the reward, else with None.
Weigh = Callable[[Sequence[Tensor] | None, Sequence[Tensor] | None], Weighed]


class Updater:
    """Takes the updates of steps. Everything it needs to know of earlier steps is in the policy's weights."""

    def __init__(self, recipe: TrainRecipe, policy: Policy, micro_batch_tokens: int) -> None:
        self._recipe = recipe
        self._policy = policy
        self._micro_batch_tokens = micro_batch_tokens
        self._objective = objective_of(recipe.algorithm)

    def learning_rate(self, step: int, place: int) -> float:
        """The rate of a step's update at ``place``, from 0. Its number follows from the step, skipped updates included."""
        recipe = self._recipe
        return learning_rate(
            recipe.lr_schedule,
            recipe.learning_rate,
            (step - 1) * recipe.updates_per_step + place + 1,
            total=recipe.max_steps * recipe.updates_per_step,
            warmup=recipe.warmup_updates,
        )

    def take(
        self, sequences: Sequence[TrainSequence], step: int, *, engine_logp: Sequence[Sequence[float]], weigh: Weigh
    ) -> Taken:
        """Take the updates of ``step`` over its samples, ``num_generations`` per prompt in a row, weighed by ``weigh``.

        ``engine_logp`` are the engine's log-probs of each sample's tokens, for the importance correction.
        """
        algorithm = self._recipe.algorithm
        in_reward = bool(algorithm.kl.in_reward and algorithm.kl.coef)
        parts = _Parts.cut(sequences, self._recipe.prompts_per_update * self._recipe.num_generations)
        layouts = [self._layout([sequences[place] for place in part]) for part in parts.counted]
        rest = self._layout([sequences[place] for place in parts.rest])
        once = len(parts.counted) == 1
        early = not once or in_reward or algorithm.importance_correction.mode != "none"
        old = [self._score(layout) for layout in layouts] if early else None
        rest_logp = self._score(rest)
        reference = reference_logp(self._policy.reference, [*layouts, rest] if in_reward else layouts)
        whole = None if old is None else parts.joined([*old, rest_logp], [*layouts, rest])
        weighed = weigh(whole if in_reward else None, parts.joined(reference, [*layouts, rest]) if in_reward else None)
        found = None if whole is None else importance(algorithm.importance_correction, whole, engine_logp)
        ready = _filled(sequences, weighed, found)
        results: list[UpdateResult] = []
        with self._policy.training(step):
            for place, part in enumerate(parts.counted):
                results.append(
                    update(
                        self._policy.body,
                        self._policy.head,
                        self._policy.optimizer,
                        [ready[index] for index in part],
                        layouts[place],
                        objective=self._objective,
                        lr=self.learning_rate(step, place),
                        max_grad_norm=self._recipe.max_grad_norm,
                        # At the rollout's weights the ratio is 1 exactly, which None says.
                        old_logp=None if place == 0 or old is None else old[place],
                        ref_logp=reference[place],
                    )
                )
        if whole is None:
            whole = parts.joined([*(list(result.logp) for result in results), rest_logp], [*layouts, rest])
        return Taken(tuple(results), tuple(whole), weighed, found)

    def learn(self, sequences: Sequence[TrainSequence], step: int) -> list[UpdateResult]:
        """Take the updates of a supervised step, one sequence per prompt; nothing is compared with a rollout or reference."""
        size = self._recipe.prompts_per_update
        parts = [sequences[start : start + size] for start in range(0, len(sequences), size)]
        policy = self._policy
        with policy.training(step):
            return [
                update(
                    policy.body,
                    policy.head,
                    policy.optimizer,
                    part,
                    self._layout(part),
                    objective=self._objective,
                    lr=self.learning_rate(step, place),
                    max_grad_norm=self._recipe.max_grad_norm,
                    old_logp=None,
                    ref_logp=None,
                )
                for place, part in enumerate(parts)
            ]

    def _layout(self, part: Sequence[TrainSequence]) -> list[MicroBatch]:
        plan = plan_micro_batches([sequence.tokens for sequence in part], self._micro_batch_tokens)
        return build_micro_batches(part, plan, self._policy.device)

    def _score(self, layout: Sequence[MicroBatch]) -> list[Tensor]:
        return score(self._policy.body, self._policy.head, layout)


@dataclass(frozen=True)
class _Parts:
    """Places of the samples: those in the loss by update, and the rest."""

    counted: tuple[tuple[int, ...], ...]
    rest: tuple[int, ...]

    @classmethod
    def cut(cls, sequences: Sequence[TrainSequence], size: int) -> "_Parts":
        places = range(len(sequences))
        parts = [places[start : start + size] for start in range(0, len(sequences), size)]
        counted = tuple(tuple(place for place in part if sequences[place].counts) for part in parts)
        return cls(counted, tuple(place for place in places if not sequences[place].counts))

    def joined(self, found: Sequence[Sequence[Tensor]], layouts: Sequence[Sequence[MicroBatch]]) -> list[Tensor]:
        """Log-probs by micro-batch, of every part and then of the rest, as one tensor [T] per sample in the samples' order."""
        ordered: dict[int, Tensor] = {}
        for places, layout, values in zip([*self.counted, self.rest], layouts, found, strict=True):
            for batch, logp_T in zip(layout, values, strict=True):
                pieces = torch.split(logp_T.detach().cpu(), list(batch.lengths))
                ordered |= {places[index]: piece for index, piece in zip(batch.indices, pieces, strict=True)}
        return [ordered[place] for place in range(len(ordered))]


def _filled(sequences: Sequence[TrainSequence], weighed: Weighed, found: Importance | None) -> list[TrainSequence]:
    return [
        replace(
            sequence,
            advantage=float(weighed.result.advantages_B[place]),
            token_advantages=None if weighed.token_advantages is None else weighed.token_advantages[place],
            importance=None if found is None else found.weights[place],
        )
        for place, sequence in enumerate(sequences)
    ]
