"""The looks of a train run: the base model's frozen answers, then every look's evaluation and what the rule made of it.

The first suite of ``looks.suites`` carries the damage stop; further suites are asked in full at every look and are reported,
not tested. Draws come from the frozen prespecification's key and the checkpoint's hash, so nobody can know or choose them.
Statistics are ``core.damage``'s; this module asks the items, stores the answers and hands them over.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from core.damage.draws import draw
from core.damage.observations import LookDecision, Observation, Tally, mean_scores, tally
from core.damage.rules import Rule
from core.engines.base import Engine, SamplingParams
from core.evals.run import EvaluationSummary, Record, evaluate
from core.recipes import TrainRecipe
from core.store import evaluations, looks, metrics, prompts, runs
from core.tasks.items import Item, ItemSet
from core.tasks.pool import VerifierPool
from core.tasks.verifiers import version_of
from core.tasks.verifiers.verdict import Outcome as Verdict
from core.train.context import RunContext
from core.train.prepare import Prepared

BASE = "base"
Scores = dict[str, float | None]


class BaseUnjudgedError(RuntimeError):
    """Some answers of the base model could not be judged because the machinery failed; the attempt should be repeated."""


@dataclass(frozen=True)
class LookResult:
    """What one look means for the run: its held-out accuracy, and whether the frozen rule says to end it."""

    accuracy: float | None
    decided: bool
    stop: bool


@dataclass(frozen=True)
class _Answered:
    """One stored evaluation: its id, its summary, and each item's score (None where it could not be judged)."""

    id: str
    summary: EvaluationSummary
    scores: Scores


class LookKeeper:
    """Asks the base model once and the policy at every look. ``rule`` is None where the recipe has no damage stop."""

    def __init__(
        self,
        context: RunContext,
        recipe: TrainRecipe,
        prepared: Prepared,
        *,
        engine: Engine,
        params: SamplingParams,
        decode: Callable[[Sequence[int]], str],
        pool: VerifierPool,
        rule: Rule | None,
        key: bytes,
    ) -> None:
        self._context = context
        self._recipe = recipe
        self._prepared = prepared
        self._engine = engine
        self._params = params
        self._decode = decode
        self._pool = pool
        self._rule = rule
        self._key = key
        self._base: dict[str, dict[str, float]] = {}

    def due(self, step: int) -> bool:
        """Whether a look belongs to ``step``: every so many steps, and at the last one."""
        if self._recipe.looks is None or step == 0:
            return False
        return step % self._recipe.looks.every == 0 or step == self._recipe.max_steps

    def missing(self, step: int) -> bool:
        """Whether the look of ``step`` is due and was not finished by an earlier attempt."""
        if not self.due(step):
            return False
        with self._context.db.read() as session:
            done = {(row.step, row.suite) for row in looks.list_(session, self._context.run_id)}
        return any((step, suite) not in done for suite in self._prepared.suites)

    def accuracies(self) -> list[float]:
        """Held-out accuracies of the looks so far, oldest first."""
        with self._context.db.read() as session:
            rows = looks.list_(session, self._context.run_id, suite=self._stop_suite)
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
                runs_done = [_scores_of(evaluations.verdicts(session, row.id)) for row in done]
            for number in range(len(done), wanted):
                answered = self._ask_base_once(suite, items, number, weights_sha256())
                if answered is None:
                    return False
                runs_done.append(answered.scores)
            self._base[suite] = self._frozen_base(suite, runs_done)
        return True

    def _ask_base_once(self, suite: str, items: ItemSet, number: int, weights_sha256: str) -> _Answered | None:
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
            raise BaseUnjudgedError(
                f"{len(unjudged)} base answers of suite {suite} could not be judged, first: {unjudged[0]}"
            )
        with self._context.db.fenced(self._context.fence) as session:
            self._finish(session, answered)
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

    def look(self, step: int, weights_sha256: str) -> LookResult | None:
        """Evaluate every suite at ``step`` and ask the rule; None when interrupted before all suites were done."""
        result = LookResult(accuracy=None, decided=False, stop=False)
        with self._context.db.read() as session:
            done = {row.suite for row in looks.list_(session, self._context.run_id) if row.step == step}
        for suite in self._prepared.suites:
            if suite in done:
                continue
            one = self._look_at(suite, step, weights_sha256)
            if one is None:
                return None
            if suite == self._stop_suite:
                result = one
        return result

    def _look_at(self, suite: str, step: int, weights_sha256: str) -> LookResult | None:
        with self._context.db.read() as session:
            earlier = looks.list_(session, self._context.run_id, suite=suite)
        number = len(earlier) + 1
        items = self._items(suite, number, weights_sha256)
        answered = self._ask(
            suite, items, purpose="look", step=step, weights_sha256=weights_sha256, batch_size=self._looks.batch_size
        )
        if answered is None:
            return None
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
        decided = decision is not None and decision.decided
        stop = decided and self._rule is not None and self._rule.action == "stop"
        return LookResult(answered.summary.accuracy, decided, stop)

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
    ) -> _Answered | None:
        """Evaluate and store batch by batch; None when interrupted (the rest is asked again by the next attempt)."""
        context, rendered = self._context, [self._prepared.render(item) for item in items]
        with context.db.fenced(context.fence) as session:
            prompts.put_many(session, [(one.sha256, one.token_ids, one.text) for one in rendered])
            evaluation_id = evaluations.start(
                session,
                context.fence,
                step=step,
                purpose=purpose,
                model_ref=self._recipe.model if purpose != "look" else f"run:{context.run_id}/step-{step}",
                suite=suite,
                split=self._prepared.suites[suite].split,
                mode="greedy",
                n_items=len(items),
                checkpoint_sha256=weights_sha256,
                params=_params(self._params, batch_size),
                engine=self._engine.settings(),
                dataset_hash=self._prepared.suites[suite].sha256,
                verifier=self._prepared.suites[suite].verifier,
                verifier_version=version_of(self._prepared.suites[suite].verifier),
            )
            runs.progress(session, context.fence, phase=f"{purpose}: {suite}", done=0, total=len(items), unit="items")
        scores: Scores = {}

        def store(records: list[Record]) -> None:
            scores.update({record.item_id: record.score for record in records})
            with context.db.fenced(context.fence) as session:
                evaluations.add_records(session, context.fence, evaluation_id, [asdict(record) for record in records])
                runs.progress(
                    session,
                    context.fence,
                    phase=f"{purpose}: {suite}",
                    done=len(scores),
                    total=len(items),
                    unit="items",
                )

        summary = evaluate(
            self._engine,
            self._prepared.render,
            items,
            suite=suite,
            params=self._params,
            batch_size=batch_size,
            pool=self._pool,
            seed=self._recipe.seed,
            decode=self._decode,
            should_stop=lambda: context.control.requested is not None,
            on_batch=store,
        )
        return _Answered(evaluation_id, summary, scores) if summary.finished else None

    def _finish(self, session: Any, answered: _Answered) -> None:
        summary = answered.summary
        evaluations.finish(
            session,
            self._context.fence,
            answered.id,
            accuracy=summary.accuracy,
            ci_low=summary.ci_low,
            ci_high=summary.ci_high,
            correct=float(summary.correct),
            truncated_share=summary.truncated_share,
            no_answer_share=summary.no_answer_share,
            mean_tokens=summary.mean_tokens,
        )

    def _store_look(
        self,
        suite: str,
        step: int,
        *,
        number: int,
        weights_sha256: str,
        answered: _Answered,
        observations: Sequence[Observation],
        decision: LookDecision | None,
    ) -> None:
        counted: Tally = decision.tally if decision else tally(observations)
        summary, fence = answered.summary, self._context.fence
        with self._context.db.fenced(fence) as session:
            self._finish(session, answered)
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


def _params(params: SamplingParams, batch_size: int) -> Mapping[str, Any]:
    return {**asdict(params), "batch_size": batch_size}


def _scores_of(verdicts: Mapping[str, Sequence[str]]) -> Scores:
    return {
        item: None if found[0] == Verdict.INFRA_ERROR else float(found[0] == Verdict.CORRECT)
        for item, found in verdicts.items()
    }
