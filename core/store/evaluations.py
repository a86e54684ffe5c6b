"""Evaluations and their item records: start, fill, finish; list, page and compare. Statistics are computed elsewhere."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, and_, case, delete, false, insert, literal, or_, select, tuple_
from sqlalchemy.orm import Session, aliased

from core.store.database import now
from core.store.errors import BadFilter, NotFound, RecordsDeleted
from core.store.fencing import Fence, require
from core.store.grading_models import LaterVerdict
from core.store.models import Evaluation, ItemRecord, Run
from core.store.paging import Page, checked_limit, int_cursors, page_of

CORRECT = "correct"
NO_CLAIM = "infra_error"
FLIPS = ("lost", "gained", "same")
_RECORD_FIELDS = {column.name for column in ItemRecord.__table__.columns} - {"id", "evaluation_id"}


@dataclass(frozen=True)
class Item:
    """One record, with the verdict of the same item and sample in the evaluation it is compared with.

    ``flip`` is lost (correct there, not here), gained, or same; None without a counterpart. A failure of the infrastructure
    on either side is no claim about the model, so it is never a flip.
    """

    record: ItemRecord
    base_verdict: str | None
    flip: str | None


def start(
    session: Session,
    fence: Fence,
    *,
    step: int | None,
    purpose: str,
    model_ref: str,
    suite: str,
    mode: str,
    n_items: int,
    samples: int = 1,
    split: str | None = None,
    checkpoint_sha256: str | None = None,
    params: Mapping[str, Any] | None = None,
    engine: Mapping[str, Any] | None = None,
    dataset_hash: str | None = None,
    verifier: str | None = None,
    verifier_version: str | None = None,
) -> str:
    """Open an evaluation with status running and return its id; it counts only once finished."""
    require(session, fence)
    row = Evaluation(
        run_id=fence.run_id, attempt=fence.attempt, step=step, purpose=purpose, model_ref=model_ref, suite=suite, mode=mode,
        n_items=n_items, samples=samples, split=split, checkpoint_sha256=checkpoint_sha256, params=dict(params or {}),
        engine=dict(engine or {}), dataset_hash=dataset_hash, verifier=verifier, verifier_version=verifier_version,
        created_at=now(session),
    )  # fmt: skip
    session.add(row)
    session.flush()
    return row.id


def add_records(session: Session, fence: Fence, evaluation_id: str, records: Sequence[Mapping[str, Any]]) -> None:
    """Add item records; each mapping has the columns of `ItemRecord` without ids (``sample`` defaults to 0)."""
    require(session, fence)
    _own(session, fence, evaluation_id)
    for record in records:
        unknown = set(record) - _RECORD_FIELDS
        if unknown:
            raise ValueError(f"item record has unknown fields {sorted(unknown)}; allowed are {sorted(_RECORD_FIELDS)}")
    if records:
        blank = {
            "sample": 0,
            "cluster": None,
            "gold": None,
            "extracted": None,
            "reason": None,
            "verifier_version": None,
            "verify_ms": None,
            "details": None,
        }
        session.execute(insert(ItemRecord), [{**blank, **record, "evaluation_id": evaluation_id} for record in records])


def finish(
    session: Session,
    fence: Fence,
    evaluation_id: str,
    *,
    accuracy: float | None,
    ci_low: float | None = None,
    ci_high: float | None = None,
    correct: float | None = None,
    truncated_share: float | None = None,
    no_answer_share: float | None = None,
    mean_tokens: float | None = None,
    measures: Mapping[str, Any] | None = None,
    verifier_version: str | None = None,
) -> Evaluation:
    """Close an evaluation with its summary; ``measures`` holds what has no column of its own."""
    require(session, fence)
    row = _own(session, fence, evaluation_id)
    row.accuracy, row.ci_low, row.ci_high, row.correct = accuracy, ci_low, ci_high, correct
    row.truncated_share, row.no_answer_share, row.mean_tokens = truncated_share, no_answer_share, mean_tokens
    row.measures = None if measures is None else dict(measures)
    row.verifier_version = verifier_version or row.verifier_version
    row.status, row.finished_at = "finished", now(session)
    session.flush()
    return row


def discard_unfinished(session: Session, fence: Fence) -> int:
    """Delete the evaluations that the run's attempts left unfinished, with their records, and return how many.

    A partial evaluation is nobody's result, and its items will be asked again under the same ids.
    """
    require(session, fence)
    return drop_unfinished(session, fence.run_id)


def drop_unfinished(session: Session, run_id: str) -> int:
    """The same for a run that nobody holds any more; the caller has locked it."""
    ids = list(
        session.scalars(select(Evaluation.id).where(Evaluation.run_id == run_id, Evaluation.status == "running"))
    )
    if ids:
        session.execute(delete(ItemRecord).where(ItemRecord.evaluation_id.in_(ids)))
        session.execute(delete(Evaluation).where(Evaluation.id.in_(ids)))
    return len(ids)


def get(session: Session, evaluation_id: str) -> Evaluation:
    """Return one evaluation; raises NotFound."""
    row = session.get(Evaluation, evaluation_id)
    if row is None:
        raise NotFound(f"there is no evaluation {evaluation_id[:40]!r}")
    return row


def with_records(session: Session, evaluation_id: str) -> Evaluation:
    """Return one evaluation whose records are still there; raises NotFound or RecordsDeleted.

    What was found stays on record when a run is deleted, so :func:`get` finds the evaluation; its answers are gone.
    """
    row = get(session, evaluation_id)
    if session.scalar(select(Run.deleted_at).where(Run.id == row.run_id)) is not None:
        raise RecordsDeleted(f"the records of evaluation {row.id} went when its run {row.run_id} was deleted")
    return row


def list_for_run(
    session: Session, run_id: str, *, suite: str | None = None, purpose: str | None = None, superseded: bool = False
) -> list[Evaluation]:
    """Return a run's evaluations in the order they were started; superseded ones only when asked for."""
    query = select(Evaluation).where(Evaluation.run_id == run_id).order_by(Evaluation.created_at, Evaluation.id)
    wanted = {Evaluation.suite: suite, Evaluation.purpose: purpose}
    query = query.where(*(column == value for column, value in wanted.items() if value is not None))
    return list(session.scalars(query if superseded else query.where(Evaluation.superseded == false())))


def base_evaluations(session: Session, run_id: str, suite: str) -> list[Evaluation]:
    """Return the finished, current evaluations of the base model on ``suite``, first run first."""
    query = select(Evaluation).where(Evaluation.run_id == run_id, Evaluation.suite == suite)
    query = query.where(Evaluation.purpose.in_(["base", "base_repeat"]), Evaluation.status == "finished")
    query = query.where(Evaluation.superseded == false())
    first = case((Evaluation.purpose == "base", 0), else_=1)
    return list(session.scalars(query.order_by(first, Evaluation.created_at, Evaluation.id)))


def verdicts(session: Session, evaluation_id: str) -> dict[str, list[str]]:
    """Return each item's verdicts by sample, items in the suite's order."""
    query = select(ItemRecord.item_id, ItemRecord.verdict).where(ItemRecord.evaluation_id == evaluation_id)
    found: dict[str, list[str]] = {}
    for item_id, verdict in session.execute(query.order_by(ItemRecord.position, ItemRecord.sample)):
        found.setdefault(item_id, []).append(verdict)
    return found


def clustered_verdicts(session: Session, evaluation_id: str) -> list[tuple[str, str | None, str]]:
    """Return (item id, cluster, verdict) of every record, in the suite's order."""
    query = select(ItemRecord.item_id, ItemRecord.cluster, ItemRecord.verdict)
    query = query.where(ItemRecord.evaluation_id == evaluation_id).order_by(ItemRecord.position, ItemRecord.sample)
    return [(item_id, cluster, verdict) for item_id, cluster, verdict in session.execute(query)]


def records_after(session: Session, evaluation_id: str, after: tuple[int, int] | None, limit: int) -> list[ItemRecord]:
    """Return the next ``limit`` records behind (position, sample) in the suite's order, for a reader that takes them all."""
    query = select(ItemRecord).where(ItemRecord.evaluation_id == evaluation_id)
    if after is not None:
        query = query.where(tuple_(ItemRecord.position, ItemRecord.sample) > after)
    return list(session.scalars(query.order_by(ItemRecord.position, ItemRecord.sample).limit(limit)))


def items_page(
    session: Session,
    evaluation_id: str,
    *,
    after: str | None = None,
    limit: int = 50,
    verdict: str | None = None,
    flip: str | None = None,
    against: str | None = None,
    changed_by: str | None = None,
) -> Page[Item]:
    """Return records in the suite's order, each compared with the evaluation ``against`` (an id) when given.

    ``changed_by`` keeps those whose verdict is another one in that later grading.
    """
    if flip is not None and flip not in FLIPS:
        raise BadFilter(f"flip is {flip!r}; allowed are {', '.join(FLIPS)}")
    if flip is not None and against is None:
        raise BadFilter("flip needs an evaluation to compare with; give `against`, or evaluate the base model first")
    get(session, evaluation_id)
    base = aliased(ItemRecord)
    same_item = and_(
        base.evaluation_id == against, base.item_id == ItemRecord.item_id, base.sample == ItemRecord.sample
    )
    flipped = _flip(base.verdict.expression)
    query = select(ItemRecord, base.verdict, flipped).outerjoin(base, same_item)
    query = query.where(ItemRecord.evaluation_id == evaluation_id)
    query = query.order_by(ItemRecord.position, ItemRecord.sample).limit(checked_limit(limit) + 1)
    if verdict is not None:
        query = query.where(ItemRecord.verdict == verdict)
    if flip is not None:
        query = query.where(flipped == flip)
    if changed_by is not None:
        same_record = and_(LaterVerdict.record_id == ItemRecord.id, LaterVerdict.regrade_id == changed_by)
        query = query.join(LaterVerdict, same_record).where(LaterVerdict.verdict != ItemRecord.verdict)
    if after is not None:
        position, sample = int_cursors(after, 2)
        query = query.where(
            or_(ItemRecord.position > position, and_(ItemRecord.position == position, ItemRecord.sample > sample))
        )
    rows = [Item(*row) for row in session.execute(query)]
    return page_of(rows, limit, lambda item: f"{item.record.position}:{item.record.sample}")


def _flip(base_verdict: ColumnElement[str]) -> ColumnElement[str | None]:
    here = ItemRecord.verdict
    no_claim = or_(here == NO_CLAIM, base_verdict == NO_CLAIM)
    return case(
        (base_verdict.is_(None), None),
        (no_claim, literal("same")),
        (and_(base_verdict == CORRECT, here != CORRECT), literal("lost")),
        (and_(base_verdict != CORRECT, here == CORRECT), literal("gained")),
        else_=literal("same"),
    )


def _own(session: Session, fence: Fence, evaluation_id: str) -> Evaluation:
    row = get(session, evaluation_id)
    if row.run_id != fence.run_id or row.status != "running":
        raise NotFound(f"run {fence.run_id} has no running evaluation {evaluation_id}")
    return row
