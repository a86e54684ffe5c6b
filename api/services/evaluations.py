"""Evaluations, their items against base, and the paired comparison of two evaluations."""

from typing import Any

from sqlalchemy.orm import Session

from api.errors import InvalidRequest
from api.times import iso
from core.evals.comparison import paired
from core.store import evaluations
from core.store.evaluations import CORRECT, NO_CLAIM, Item
from core.store.models import Evaluation

LISTED_ITEMS = 200


def document(row: Evaluation) -> dict[str, Any]:
    """An evaluation as the API shows it."""
    return {
        "id": row.id,
        "run_id": row.run_id,
        "attempt": row.attempt,
        "step": row.step,
        "purpose": row.purpose,
        "model_ref": row.model_ref,
        "checkpoint_sha256": row.checkpoint_sha256,
        "suite": row.suite,
        "split": row.split,
        "mode": row.mode,
        "samples": row.samples,
        "params": row.params,
        "engine": row.engine,
        "dataset_hash": row.dataset_hash,
        "verifier": row.verifier,
        "verifier_version": row.verifier_version,
        "status": row.status,
        "n_items": row.n_items,
        "correct": row.correct,
        "accuracy": row.accuracy,
        "ci": None if row.ci_low is None else [row.ci_low, row.ci_high],
        "truncated_share": row.truncated_share,
        "no_answer_share": row.no_answer_share,
        "mean_tokens": row.mean_tokens,
        "superseded": row.superseded,
        "created_at": iso(row.created_at),
        "finished_at": iso(row.finished_at),
    }


def base_of(session: Session, row: Evaluation) -> str | None:
    """Id of the evaluation that ``row`` is compared with by default: its run's first base evaluation of the suite."""
    bases = evaluations.base_evaluations(session, row.run_id, row.suite)
    return next((base.id for base in bases if base.id != row.id), None)


def item(entry: Item, row: Evaluation) -> dict[str, Any]:
    """One record with its base verdict and flip."""
    record = entry.record
    return {
        "item_id": record.item_id,
        "suite": row.suite,
        "step": row.step,
        "sample": record.sample,
        "prompt_sha256": record.prompt_sha256,
        "token_ids": record.token_ids,
        "text": record.text,
        "gold": record.gold,
        "extracted": record.extracted,
        "verdict": record.verdict,
        "reason": record.reason,
        "finish_reason": record.finish_reason,
        "n_tokens": record.n_tokens,
        "verifier_version": record.verifier_version,
        "verify_ms": record.verify_ms,
        "base_verdict": entry.base_verdict,
        "flip": entry.flip,
    }


def diff(session: Session, a: Evaluation, b: Evaluation) -> dict[str, Any]:
    """What evaluation ``b`` lost and gained against ``a`` on their common items, with an exact test.

    An item's score is the share of its samples that were right. Raises :class:`InvalidRequest` for evaluations whose items
    or verdicts do not mean the same.
    """
    for name in ("suite", "verifier", "verifier_version"):
        if getattr(a, name) != getattr(b, name):
            raise _not_comparable(f"the evaluations differ in {name}: {getattr(a, name)} and {getattr(b, name)}")
    before, after = _scores(session, a.id), _scores(session, b.id)
    shared = [item_id for item_id in before if item_id in after]
    if not shared:
        raise _not_comparable("the evaluations have no judged item in common")
    result = paired([before[name] for name in shared], [after[name] for name in shared])
    return {
        "a": a.id,
        "b": b.id,
        "suite": a.suite,
        "n": result.n,
        "only_a": len(before) - len(shared),
        "only_b": len(after) - len(shared),
        "lost": result.lost,
        "gained": result.gained,
        "delta": result.delta,
        "ci": list(result.ci),
        "p_value": result.p_value,
        "test": "exact McNemar, two-sided" if a.samples == b.samples == 1 else "exact sign test on items, two-sided",
        "lost_items": [name for name in shared if after[name] < before[name]][:LISTED_ITEMS],
        "gained_items": [name for name in shared if after[name] > before[name]][:LISTED_ITEMS],
    }


def _not_comparable(message: str) -> InvalidRequest:
    hint = "compare two evaluations of one suite by one verifier"
    return InvalidRequest(message, param="b", code="not_comparable", hint=hint)


def _scores(session: Session, evaluation_id: str) -> dict[str, float]:
    """Share of right samples by item; samples that the machinery failed to judge are left out."""
    found: dict[str, float] = {}
    for name, verdicts in evaluations.verdicts(session, evaluation_id).items():
        judged = [verdict for verdict in verdicts if verdict != NO_CLAIM]
        if judged:
            found[name] = sum(verdict == CORRECT for verdict in judged) / len(judged)
    return found
