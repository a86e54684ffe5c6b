"""Stored greedy answers of one set of weights: what an export of the same weights is asked again. Reads only."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import false, select
from sqlalchemy.orm import Session

from core.store.models import Evaluation, ItemRecord, Prompt, Rollout

_FINISHED = "finished"
_GREEDY = "greedy"


@dataclass(frozen=True)
class GreedyRecord:
    """One greedy answer: the prompt's tokens, the answer's, and how it was decoded (``params`` of its evaluation)."""

    item_id: str
    prompt_ids: tuple[int, ...]
    prompt_text: str
    token_ids: tuple[int, ...]
    params: Mapping[str, Any]


def of_weights(session: Session, sha256: str, limit: int) -> list[GreedyRecord]:
    """Return up to ``limit`` greedy records of the weights ``sha256`` from one evaluation, the newest; empty without one."""
    query = select(Evaluation).where(Evaluation.checkpoint_sha256 == sha256, Evaluation.mode == _GREEDY)
    query = query.where(Evaluation.status == _FINISHED, Evaluation.superseded == false())
    evaluation = session.scalar(query.order_by(Evaluation.created_at.desc(), Evaluation.id).limit(1))
    if evaluation is None:
        return []
    records = select(ItemRecord, Prompt).join(Prompt, Prompt.sha256 == ItemRecord.prompt_sha256)
    records = records.where(ItemRecord.evaluation_id == evaluation.id).order_by(ItemRecord.position).limit(limit)
    return [
        GreedyRecord(row.item_id, tuple(prompt.token_ids), prompt.text, tuple(row.token_ids), dict(evaluation.params))
        for row, prompt in session.execute(records)
    ]


def prompts_of_run(session: Session, run_id: str, limit: int) -> list[tuple[tuple[int, ...], str]]:
    """Return up to ``limit`` prompts that a run trained on, as token ids and text, first asked first."""
    query = select(Prompt, Rollout.id).join(Rollout, Rollout.prompt_sha256 == Prompt.sha256)
    query = query.where(Rollout.run_id == run_id, Rollout.sample == 0).order_by(Rollout.id)
    found: dict[str, tuple[tuple[int, ...], str]] = {}
    for prompt, _ in session.execute(query.limit(4 * limit)):
        found.setdefault(prompt.sha256, (tuple(prompt.token_ids), prompt.text))
    return list(found.values())[:limit]
