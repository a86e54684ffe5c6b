"""Evaluations and their items against base, with what later gradings said. Comparisons are in ``comparisons``."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy.orm import Session

from api.errors import InvalidRequest
from api.times import iso
from core.evals.export import later_verdicts
from core.store import evaluations
from core.store.evaluations import Item
from core.store.grading_models import LaterVerdict, Regrade
from core.store.models import Evaluation


def refuse_foreign_grading(row: Evaluation, grading: Regrade) -> None:
    """Refuse a later grading of another evaluation, which says nothing of this one. Raises :class:`InvalidRequest`."""
    if grading.evaluation_id != row.id:
        raise InvalidRequest(
            f"grading {grading.id} is of evaluation {grading.evaluation_id}, not of {row.id}",
            param="changed_by",
            hint=f"GET /evals/{row.id} lists its later gradings",
        )


def document(row: Evaluation, later: Sequence[Regrade] = ()) -> dict[str, Any]:
    """An evaluation as the API shows it, with its later gradings."""
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
        "measures": row.measures,
        "regrades": [regrade(one) for one in later],
        "superseded": row.superseded,
        "created_at": iso(row.created_at),
        "finished_at": iso(row.finished_at),
    }


def regrade(row: Regrade) -> dict[str, Any]:
    """A later grading as the API shows it."""
    return {
        "id": row.id,
        "run_id": row.run_id,
        "verifier": row.verifier,
        "verifier_version": row.verifier_version,
        "records": row.records,
        "changed": row.changed,
        "correct": row.correct,
        "accuracy": row.accuracy,
        "ci": None if row.ci_low is None else [row.ci_low, row.ci_high],
        "measures": row.measures,
        "created_at": iso(row.created_at),
        "finished_at": iso(row.finished_at),
    }


def base_of(session: Session, row: Evaluation) -> str | None:
    """Id of the evaluation that ``row`` is compared with by default: its run's first base evaluation of the suite."""
    bases = evaluations.base_evaluations(session, row.run_id, row.suite)
    return next((base.id for base in bases if base.id != row.id), None)


def item(entry: Item, row: Evaluation, later: Sequence[tuple[Regrade, LaterVerdict]] = ()) -> dict[str, Any]:
    """One record with its base verdict and flip, and what later gradings said beside it."""
    record = entry.record
    return {
        "item_id": record.item_id,
        "cluster": record.cluster,
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
        "details": record.details,
        "regrades": later_verdicts(later),
        "base_verdict": entry.base_verdict,
        "flip": entry.flip,
    }
