"""The looks of a train run: the base model's frozen answers, then every look's evaluation and what the rule made of it.

The first suite of ``looks.suites`` carries the damage stop; further suites are asked in full at every look and are reported,
not tested. Draws come from the frozen prespecification's key and the checkpoint's hash, so nobody can know or choose them.
Statistics are ``core.damage``'s; this module asks the items, stores the answers and hands them over.
"""

from collections.abc import Callable, Sequence
from typing import Any

from core.damage.draws import draw
from core.damage.observations import LookDecision, Observation, Tally, mean_scores, tally
from core.damage.rules import Rule
from core.engines.base import SamplingParams
from core.evals.stored import Answered, Asked, Evaluator, Scores, scores_of
from core.jobs import RunContext
from core.recipes import TrainRecipe
from core.store import evaluations, looks, metrics
from core.tasks.items import Item, ItemSet
from core.train import prespecify
from core.train.prepare import Prepared

BASE = "base"


UNJUDGED_LIMIT = 0.1
"""Share of a look's items that may stay unjudged after they were asked again; with more, the look says too little."""


class UnjudgedError(RuntimeError):
    """Answers could not be judged because the machinery failed, also when asked again; the attempt should be repeated."""


class LookKeeper:
    """Asks the base model once and the policy at every look. ``rule`` is None where the recipe has no damage stop.

    ``begins_at`` is the step of the weights that the run starts from: 0, or a fork's step in its parent.
    """

    def __init__(
        self,
        context: RunContext,
        recipe: TrainRecipe,
        prepared: Prepared,
        *,
        evaluator: Evaluator,
        params: SamplingParams,
        rule: Rule | None,
        key: bytes,
        begins_at: int,
    ) -> None:
        self._context = context
        self._recipe = recipe
        self._prepared = prepared
        self._evaluator = evaluator
        self._params = params
        self._rule = rule
        self._key = key
        self._begins_at = begins_at
        self._steps = prespecify.steps_of_looks(recipe, begins_at)
        self._base: dict[str, dict[str, float]] = {}

    def missing(self, step: int, *, final: bool = False) -> bool:
        """Whether a look belongs to ``step``, planned or because the run ends there, and was not finished already."""
        if step not in self._steps and not (final and step > self._begins_at):
            return False
        with self._context.db.read() as session:
            done = {(row.step, row.suite) for row in looks.list_(session, self._context.run_id, whole=False)}
        return any((step, suite) not in done for suite in self._prepared.suites)

    def stop_decided(self) -> bool:
        """Whether the frozen rule has decided, by any attempt's look, and is there to end the run."""
        if self._rule is None or self._rule.action != "stop":
            return False
        with self._context.db.read() as session:
            last = looks.last(session, self._context.run_id, suite=self._stop_suite)
        return last is not None and last.decided

    def accuracies(self) -> list[float]:
        """Held-out accuracies of the looks so far, oldest first; none where the recipe has no looks."""
        if not self._prepared.suites:
            return []
        with self._context.db.read() as session:
            rows = looks.list_(session, self._context.run_id, suite=self._stop_suite, whole=False)
        return [row.accuracy for row in rows if row.accuracy is not None]

    @property
    def _stop_suite(self) -> str:
        return next(iter(self._prepared.suites))

    def ask_base(self, weights_sha256: Callable[[], str]) -> bool:
        """Ask the base model what earlier attempts have not asked yet; False when interrupted.

        The stop's suite is asked ``looks.base_runs`` times, each time in another order and batch, so that the noise floor shows
        what batch shape alone changes. Other suites are asked once. The hash is asked for only if something is left to ask.
        """
        if self._recipe.looks is None:
            return True
        for suite, items in self._prepared.suites.items():
            wanted = self._recipe.looks.base_runs if suite == self._stop_suite else 1
            with self._context.db.read() as session:
                done = evaluations.base_evaluations(session, self._context.run_id, suite)
                runs_done = [scores_of(evaluations.verdicts(session, row.id)) for row in done]
            for number in range(len(done), wanted):
                answered = self._ask_base_once(suite, items, number, weights_sha256())
                if answered is None:
                    return False
                runs_done.append(answered.scores)
            self._base[suite] = self._frozen_base(suite, runs_done)
        return True

    def _ask_base_once(self, suite: str, items: ItemSet, number: int, weights_sha256: str) -> Answered | None:
        first = number == 0
        answered = self._ask(
            suite,
            list(items) if first else list(reversed(items.items)),
            purpose=BASE if first else "base_repeat",
            step=0,
            weights_sha256=weights_sha256,
            batch_size=self._looks.batch_size if first else max(1, self._looks.batch_size * 3 // 4),
        )
        if answered is None:
            return None
        unjudged = [item for item, score in answered.scores.items() if score is None]
        if unjudged:
            raise UnjudgedError(
                f"{len(unjudged)} base answers of suite {suite} could not be judged, first: {unjudged[0]}"
            )
        with self._context.db.fenced(self._context.fence) as session:
            self._evaluator.close(session, answered)
            if first and answered.summary.accuracy is not None:
                metrics.record(
                    session,
                    self._context.fence,
                    0,
                    {_key(suite, self._stop_suite, "accuracy"): answered.summary.accuracy},
                )
        return answered

    def _frozen_base(self, suite: str, runs_done: Sequence[Scores]) -> dict[str, float]:
        judged = [{item: score for item, score in run.items() if score is not None} for run in runs_done]
        if self._rule is not None and suite == self._stop_suite:
            return self._rule.base_scores(judged)
        return mean_scores(judged)

    def look(self, step: int, weights_sha256: str) -> bool:
        """Evaluate every suite at ``step`` and ask the rule; False when interrupted before all suites were done."""
        with self._context.db.read() as session:
            done = {row.suite for row in looks.list_(session, self._context.run_id, whole=False) if row.step == step}
        return all(self._look_at(suite, step, weights_sha256) for suite in self._prepared.suites if suite not in done)

    def _look_at(self, suite: str, step: int, weights_sha256: str) -> bool:
        with self._context.db.read() as session:
            earlier = looks.list_(session, self._context.run_id, suite=suite)
        number = len(earlier) + 1
        items = self._items(suite, number, weights_sha256)
        answered = self._ask(
            suite, items, purpose="look", step=step, weights_sha256=weights_sha256, batch_size=self._looks.batch_size
        )
        if answered is None:
            return False
        unjudged = sum(score is None for score in answered.scores.values())
        if unjudged > UNJUDGED_LIMIT * len(items):
            raise UnjudgedError(
                f"{unjudged} of {len(items)} answers of suite {suite} at step {step} could not be judged, also when asked again"
            )
        base = self._base[suite]
        observations = [
            Observation(item.id, base[item.id], answered.scores[item.id] or 0.0, infra=answered.scores[item.id] is None)
            for item in items
        ]
        tested = self._rule is not None and suite == self._stop_suite
        decision = (
            self._rule.look(earlier[-1].rule_state if earlier else {}, observations) if tested and self._rule else None
        )
        self._store_look(
            suite,
            step,
            number=number,
            weights_sha256=weights_sha256,
            answered=answered,
            observations=observations,
            decision=decision,
        )
        return True

    def _items(self, suite: str, number: int, weights_sha256: str) -> list[Item]:
        pool = self._prepared.suites[suite]
        by_id = {item.id: item for item in pool}
        if suite != self._stop_suite:
            return list(pool)
        if self._rule is not None:
            ids = self._rule.items(self._key, number, weights_sha256, list(by_id))
        else:
            ids = draw(self._key, number, weights_sha256, list(by_id), min(self._looks.m or len(by_id), len(by_id)))
        return [by_id[item_id] for item_id in ids]

    def _ask(
        self, suite: str, items: Sequence[Item], *, purpose: str, step: int, weights_sha256: str, batch_size: int
    ) -> Answered | None:
        whole = self._prepared.suites[suite]
        return self._evaluator.ask(
            Asked(
                suite=suite,
                split=whole.split,
                dataset_hash=whole.sha256,
                verifier=whole.verifier,
                items=items,
                params=self._params,
                purpose=purpose,
                model_ref=f"run:{self._context.run_id}/step-{step}" if purpose == "look" else self._recipe.model,
                checkpoint_sha256=weights_sha256,
                batch_size=batch_size,
                seed=self._recipe.seed,
                step=step,
            )
        )

    def _store_look(
        self,
        suite: str,
        step: int,
        *,
        number: int,
        weights_sha256: str,
        answered: Answered,
        observations: Sequence[Observation],
        decision: LookDecision | None,
    ) -> None:
        counted: Tally = decision.tally if decision else tally(observations)
        summary, fence = answered.summary, self._context.fence
        with self._context.db.fenced(fence) as session:
            self._evaluator.close(session, answered)
            looks.add(
                session,
                fence,
                step=step,
                number=number,
                evaluation_id=answered.id,
                checkpoint_sha256=weights_sha256,
                suite=suite,
                reference=BASE,
                n=counted.n,
                accuracy=summary.accuracy,
                ci_low=summary.ci_low,
                ci_high=summary.ci_high,
                lost=counted.lost,
                gained=counted.gained,
                d_histogram=counted.d_histogram(),
                statistic=decision.statistic if decision else None,
                threshold=decision.threshold if decision else None,
                decided=bool(decision and decision.decided),
                state=_state(decision),
                draw=[{"item_id": o.item_id, "b": o.b, "c": o.c, "d": o.d} for o in observations],
                rule_state=decision.state if decision else {},
            )
            values = {_key(suite, self._stop_suite, "delta"): counted.delta}
            if summary.accuracy is not None:
                values[_key(suite, self._stop_suite, "accuracy")] = summary.accuracy
            metrics.record(session, fence, step, values)

    @property
    def _looks(self) -> Any:
        return self._recipe.looks


def _key(suite: str, stop_suite: str, what: str) -> str:
    return f"heldout/{what}" if suite == stop_suite else f"heldout/{suite}/{what}"


def _state(decision: LookDecision | None) -> str:
    if decision is None:
        return "not_tested"
    return "damaged" if decision.decided else "watch" if decision.watch else "no_damage_shown"
