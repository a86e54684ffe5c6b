"""Grading stored answers again with the graders of today. No model is loaded, and no original verdict is touched.

The items are loaded again from where the evaluation's run had them, since grading needs references and tests; they must hash
to what was asked then. Every answer is graded, so the new verdicts stand for themselves.
"""

from collections.abc import Sequence
from typing import Any

from core.evals.suites import HOLDOUT, resolve_suite
from core.evals.summary import Tally
from core.jobs import Outcome, RunContext, UserError
from core.recipes import AnalysisRecipe, EvalRecipe, TrainRecipe, load_recipe
from core.settings import Settings
from core.store import evaluations, regrades, runs
from core.store.errors import NotFound, RecordsDeleted
from core.store.models import Evaluation, ItemRecord
from core.store.paging import MAX_LIMIT
from core.tasks.items import Item, ItemError, ItemSet, cluster_of
from core.tasks.pool import Job, VerifierPool
from core.tasks.sources import load_items, load_suite_items
from core.tasks.splits import split_holdout
from core.tasks.verifiers import version_of
from core.tasks.verifiers.verdict import Outcome as Judged
from core.tasks.verifiers.verdict import Verdict

PAGE = min(200, MAX_LIMIT)
FINISHED = "finished"


def run_regrade(context: RunContext, evaluation_id: str, pool: VerifierPool) -> Outcome:
    """Grade one evaluation's answers again to its outcome; an attempt that was cut short begins anew."""
    with context.db.fenced(context.fence) as session:
        regrades.discard_unfinished(session, context.fence)
        done = evaluation_id in regrades.done_by(session, context.run_id)
    if done:
        return Outcome("succeeded", f"evaluation {evaluation_id} is graded again")
    row = _evaluation(context, evaluation_id)
    items = {item.id: item for item in items_of(context, row)}
    verifier = row.verifier or next(iter(items.values())).verifier
    with context.db.fenced(context.fence) as session:
        regrade_id = regrades.start(
            session,
            context.fence,
            evaluation_id=evaluation_id,
            verifier=verifier,
            verifier_version=version_of(verifier),
        )
    tally, changed = Tally(), 0
    after: tuple[int, int] | None = None
    while True:
        with context.db.read() as session:
            records = evaluations.records_after(session, evaluation_id, after, PAGE)
        if not records:
            break
        if (request := context.control.requested) is not None:
            return _stopped(context, request)
        verdicts = _graded(row, items, records, pool)
        changed += sum(str(new.verdict) != old.verdict for old, new in zip(records, verdicts, strict=True))
        _count(tally, items, records, verdicts)
        after = (records[-1].position, records[-1].sample)
        with context.db.fenced(context.fence) as session:
            rows = [_later(old, new) for old, new in zip(records, verdicts, strict=True)]
            regrades.add(session, context.fence, regrade_id, rows)
            total = row.n_items * row.samples
            runs.progress(session, context.fence, phase="regrade", done=tally.records, total=total, unit="records")
    return _finished(context, row, regrade_id, tally, changed)


def _finished(context: RunContext, row: Evaluation, regrade_id: str, tally: Tally, changed: int) -> Outcome:
    summary = tally.summary(suite=row.suite, greedy=row.mode == "greedy", samples=row.samples, finished=True)
    with context.db.fenced(context.fence) as session:
        regrades.finish(
            session,
            context.fence,
            regrade_id,
            records=tally.records,
            changed=changed,
            accuracy=summary.accuracy,
            ci_low=summary.ci_low,
            ci_high=summary.ci_high,
            correct=float(summary.correct),
            measures=dict(summary.measures),
        )
    return Outcome("succeeded", f"{tally.records} answers graded again, {changed} verdicts differ")


def _evaluation(context: RunContext, evaluation_id: str) -> Evaluation:
    try:
        with context.db.read() as session:
            row = evaluations.with_records(session, evaluation_id)
    except (NotFound, RecordsDeleted) as problem:
        raise UserError("unknown_evaluation", str(problem)) from problem
    if row.status != FINISHED:
        raise UserError(
            "unknown_evaluation", f"evaluation {evaluation_id} is not finished, so it cannot be graded again"
        )
    return row


def items_of(context: RunContext, row: Evaluation) -> ItemSet:
    """Return the items that an evaluation asked of; raises :class:`UserError` when they are not there as they were."""
    try:
        candidates = _candidates(context, row)
    except ItemError as problem:
        raise UserError("unusable_data", str(problem)) from problem
    found = next((items for items in candidates if items.sha256 == row.dataset_hash), None)
    if found is None:
        raise UserError(
            "data_changed",
            f"the items of suite {row.suite} are not those that evaluation {row.id} asked of; put the data back as it was",
        )
    return found


def _candidates(context: RunContext, row: Evaluation) -> list[ItemSet]:
    """Every set of items that the run's recipe calls by the evaluation's suite."""
    settings = context.settings
    recipe = _recipe_of(context, row.run_id)
    match recipe:
        case TrainRecipe() if row.suite == HOLDOUT:
            return [_heldout(recipe, settings)]
        case TrainRecipe():
            return [load_suite_items(row.suite, settings.data_dir, seed=recipe.seed)]
        case EvalRecipe():
            trained = _trained(context, recipe) if row.suite == HOLDOUT else None
            holdout = None if trained is None else _heldout(trained, settings)
            return [
                resolve_suite(
                    spec,
                    data_dir=settings.data_dir,
                    seed=recipe.seed,
                    max_tokens=recipe.max_completion_length,
                    holdout=holdout,
                ).items
                for spec in recipe.suites
                if spec.suite == row.suite
            ]
        case AnalysisRecipe():
            raise UserError("unknown_evaluation", f"run {row.run_id} is an analysis, which asks no suite")


def _recipe_of(context: RunContext, run_id: str) -> TrainRecipe | EvalRecipe | AnalysisRecipe:
    with context.db.read() as session:
        return load_recipe(runs.get(session, run_id, deleted=True).recipe)


def _trained(context: RunContext, recipe: EvalRecipe) -> TrainRecipe:
    found = _recipe_of(context, recipe.model.removeprefix("run:").partition("/")[0])
    if not isinstance(found, TrainRecipe):
        raise UserError("unknown_evaluation", f"the holdout of {recipe.model} is not a train run's")
    return found


def _heldout(recipe: TrainRecipe, settings: Settings) -> ItemSet:
    data = recipe.data
    items = load_items(data.dataset, data.split, data.options, settings.data_dir, seed=recipe.seed)
    return split_holdout(items, data.holdout, recipe.seed).heldout


def _graded(
    row: Evaluation, items: dict[str, Item], records: Sequence[ItemRecord], pool: VerifierPool
) -> list[Verdict]:
    """Grade a page of answers, prefill included; what could not be judged is graded once more."""
    prefill = str(row.params.get("prefill", ""))
    jobs = [Job(items[record.item_id], prefill + record.text, row.verifier) for record in records]
    verdicts = pool.grade(jobs)
    left = [place for place, verdict in enumerate(verdicts) if verdict.verdict is Judged.INFRA_ERROR]
    for place, again in zip(left, pool.grade([jobs[place] for place in left]), strict=True):
        verdicts[place] = again
    return verdicts


def _count(tally: Tally, items: dict[str, Item], records: Sequence[ItemRecord], verdicts: Sequence[Verdict]) -> None:
    for record, verdict in zip(records, verdicts, strict=True):
        tally.add(
            record.item_id,
            verdict.verdict,
            cluster=cluster_of(items[record.item_id]),
            n_tokens=record.n_tokens,
            truncated=record.finish_reason == "length",
            details=verdict.details,
        )


def _later(record: ItemRecord, verdict: Verdict) -> dict[str, Any]:
    return {
        "record_id": record.id,
        "verdict": verdict.verdict.value,
        "reason": verdict.reason,
        "extracted": verdict.extracted,
        "verify_ms": verdict.ms,
        "details": dict(verdict.details) or None,
    }


def _stopped(context: RunContext, request: str) -> Outcome:
    with context.db.fenced(context.fence) as session:
        regrades.discard_unfinished(session, context.fence)
    match request:
        case "cancel":
            return Outcome("cancelled", "cancelled by request")
        case "pause":
            return Outcome("paused", "paused by request")
        case _:
            return Outcome("interrupted", "the worker is shutting down")
