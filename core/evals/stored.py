"""One evaluation that goes into the store batch by batch: what looks of train runs and evaluation runs have in common.

An interrupted evaluation counts for nothing: it is discarded, and the next attempt asks again.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

from sqlalchemy.orm import Session

from core.engines.base import Engine, SamplingParams
from core.engines.prompts import RenderedPrompt
from core.evals.run import Record, evaluate
from core.evals.summary import EvaluationSummary
from core.jobs import RunContext
from core.store import evaluations, prompts, runs
from core.tasks.items import Item
from core.tasks.pool import VerifierPool
from core.tasks.verifiers import version_of

Scores = dict[str, float | None]


@dataclass(frozen=True)
class Asked:
    """What is asked: items of one set in the order given, how they are sampled, and of which model."""

    suite: str
    split: str
    dataset_hash: str
    verifier: str
    items: Sequence[Item]
    params: SamplingParams
    purpose: str
    model_ref: str
    checkpoint_sha256: str | None
    batch_size: int
    seed: int
    samples: int = 1
    step: int | None = None


@dataclass(frozen=True)
class Answered:
    """A stored evaluation that is complete but not yet closed; ``scores`` holds each item's first sample.

    A score is None where the answer could not be judged.
    """

    id: str
    summary: EvaluationSummary
    scores: Scores


@dataclass(frozen=True)
class Evaluator:
    """Asks one engine and stores the answers of one attempt."""

    context: RunContext
    engine: Engine
    render: Callable[[Item], RenderedPrompt]
    decode: Callable[[Sequence[int]], str]
    pool: VerifierPool

    def ask(self, asked: Asked) -> Answered | None:
        """Evaluate and store batch by batch; None when interrupted, and then nothing of it is left in the store."""
        evaluation_id = self._start(asked)
        scores: Scores = {}

        def store(records: list[Record]) -> None:
            scores.update({record.item_id: record.score for record in records if record.sample == 0})
            with self.context.db.fenced(self.context.fence) as session:
                rows = [asdict(record) for record in records]
                evaluations.add_records(session, self.context.fence, evaluation_id, rows)
                self._progress(session, asked, len(scores))

        summary = evaluate(
            self.engine,
            self.render,
            asked.items,
            suite=asked.suite,
            params=asked.params,
            batch_size=asked.batch_size,
            pool=self.pool,
            seed=asked.seed,
            decode=self.decode,
            samples=asked.samples,
            should_stop=lambda: self.context.control.requested is not None,
            on_batch=store,
        )
        if summary.finished:
            return Answered(evaluation_id, summary, scores)
        with self.context.db.fenced(self.context.fence) as session:
            evaluations.discard_unfinished(session, self.context.fence)
        return None

    def _start(self, asked: Asked) -> str:
        rendered = [self.render(item) for item in asked.items]
        with self.context.db.fenced(self.context.fence) as session:
            prompts.put_many(session, [(one.sha256, one.token_ids, one.text) for one in rendered])
            self._progress(session, asked, 0)
            return evaluations.start(
                session,
                self.context.fence,
                step=asked.step,
                purpose=asked.purpose,
                model_ref=asked.model_ref,
                suite=asked.suite,
                split=asked.split,
                mode="greedy" if asked.params.temperature == 0 else "sampled",
                samples=asked.samples,
                n_items=len(asked.items),
                checkpoint_sha256=asked.checkpoint_sha256,
                params={
                    **asdict(asked.params),
                    "batch_size": asked.batch_size,
                    "seed": asked.seed,
                    "prefill": rendered[0].prefill if rendered else "",
                },
                engine=self.engine.settings(),
                dataset_hash=asked.dataset_hash,
                verifier=asked.verifier,
                verifier_version=version_of(asked.verifier),
            )

    def _progress(self, session: Session, asked: Asked, done: int) -> None:
        phase = f"{asked.purpose}: {asked.suite}"[: runs.PHASE_LENGTH]
        runs.progress(session, self.context.fence, phase=phase, done=done, total=len(asked.items), unit="items")

    def close(self, session: Session, answered: Answered) -> None:
        """Close the evaluation with its summary, within the caller's transaction."""
        summary = answered.summary
        evaluations.finish(
            session,
            self.context.fence,
            answered.id,
            accuracy=summary.accuracy,
            ci_low=summary.ci_low,
            ci_high=summary.ci_high,
            correct=float(summary.correct),
            truncated_share=summary.truncated_share,
            no_answer_share=summary.no_answer_share,
            mean_tokens=summary.mean_tokens,
            measures=summary.measures,
        )


def score_of(verdict: str) -> float | None:
    """1 for correct, None where the answer could not be judged, else 0."""
    return None if verdict == evaluations.NO_CLAIM else float(verdict == evaluations.CORRECT)


def scores_of(verdicts: Mapping[str, Sequence[str]]) -> Scores:
    """Scores of stored verdicts, first sample of each item."""
    return {item: score_of(found[0]) for item, found in verdicts.items()}
