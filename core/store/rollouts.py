"""Training samples: stored a step at a time, paged and filtered. Rewards and advantages are computed elsewhere."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, false, insert, select, true, tuple_, update
from sqlalchemy.orm import Session

from core.store.fencing import Fence, require
from core.store.models import Rollout
from core.store.paging import Page, checked_limit, int_cursors, page_of

_FIELDS = {column.name for column in Rollout.__table__.columns} - {"id", "run_id", "attempt", "step", "superseded"}
_BLANK: dict[str, Any] = {
    "reward": None,
    "reward_terms": {},
    "verdict": None,
    "reason": None,
    "extracted": None,
    "advantage": None,
    "logp_mean": None,
    "zero_variance": False,
    "used": True,
    "weights_version": None,
}
_NUMBERS = ("reward", "advantage", "logp_mean")


def add_step(session: Session, fence: Fence, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
    """Store the samples of one step; each mapping has the columns of `Rollout` but run, attempt, step and id.

    Samples of an older attempt at this step are superseded. A reward, advantage or log-prob that is not finite is stored as
    null: the curves of the step carry the fact, and these columns hold numbers only.
    """
    require(session, fence)
    stored = [_row(fence, step, row) for row in rows]
    older = update(Rollout).where(
        Rollout.run_id == fence.run_id,
        Rollout.step == step,
        Rollout.attempt < fence.attempt,
        Rollout.superseded == false(),
    )
    session.execute(older.values(superseded=true()).execution_options(synchronize_session=False))
    if stored:
        session.execute(insert(Rollout), stored)


def page(
    session: Session,
    run_id: str,
    *,
    after: str | int | None = None,
    limit: int = 50,
    step: int | None = None,
    reward_min: float | None = None,
    reward_max: float | None = None,
    verdict: str | None = None,
    tokens_min: int | None = None,
    tokens_max: int | None = None,
    zero_variance: bool | None = None,
    text: str | None = None,
    superseded: bool = False,
) -> Page[Rollout]:
    """Return samples by step, in the order they were stored; bounds are inclusive, ``text`` is a substring in any case."""
    query = select(Rollout).where(Rollout.run_id == run_id).order_by(Rollout.step, Rollout.id)
    query = query.limit(checked_limit(limit) + 1)
    query = query.where(
        *_equal(Rollout.step, step),
        *_equal(Rollout.verdict, verdict),
        *_equal(Rollout.zero_variance, None if zero_variance is None else true() if zero_variance else false()),
        *_between(Rollout.reward, reward_min, reward_max),
        *_between(Rollout.n_tokens, tokens_min, tokens_max),
        *([] if text is None else [Rollout.text.icontains(text, autoescape=True)]),
    )
    if not superseded:
        query = query.where(Rollout.superseded == false())
    if after is not None:
        at_step, last = int_cursors(str(after), 2)
        query = query.where(tuple_(Rollout.step, Rollout.id) > (at_step, last))
    return page_of(session.scalars(query).all(), limit, lambda row: f"{row.step}:{row.id}")


def _row(fence: Fence, step: int, row: Mapping[str, Any]) -> dict[str, Any]:
    unknown = set(row) - _FIELDS
    if unknown:
        raise ValueError(f"rollout has unknown fields {sorted(unknown)}; allowed are {sorted(_FIELDS)}")
    full = {**_BLANK, **row, "run_id": fence.run_id, "attempt": fence.attempt, "step": step}
    for name in _NUMBERS:
        if full[name] is not None and not math.isfinite(full[name]):
            full[name] = None
    return full


def _equal(column: Any, value: Any) -> list[ColumnElement[bool]]:
    return [] if value is None else [column == value]


def _between(column: Any, low: float | None, high: float | None) -> list[ColumnElement[bool]]:
    return ([] if low is None else [column >= low]) + ([] if high is None else [column <= high])
