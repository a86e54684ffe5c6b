"""Evaluations, their items, and the paired comparison of two of them."""

from typing import Literal

from pydantic import Field

from api.schemas.common import Body, Document, Interval, Time

Flip = Literal["lost", "gained", "same"]


class Evaluation(Body):
    """One suite asked once of one model."""

    id: str
    run_id: str
    attempt: int | None
    step: int | None
    purpose: str
    model_ref: str | None
    checkpoint_sha256: str | None
    suite: str
    split: str | None
    mode: str
    samples: int
    params: Document | None
    engine: Document | None
    dataset_hash: str | None
    verifier: str | None
    verifier_version: str | None
    status: str
    n_items: int | None
    correct: float | None
    accuracy: float | None
    ci: Interval | None
    truncated_share: float | None
    no_answer_share: float | None
    mean_tokens: float | None
    superseded: bool
    created_at: Time
    finished_at: Time | None


class Item(Body):
    """One greedy (or sampled) record."""

    item_id: str
    suite: str
    step: int | None
    sample: int
    prompt_sha256: str | None
    token_ids: list[int] | None
    text: str | None
    gold: str | None
    extracted: str | None
    verdict: str
    reason: str | None
    finish_reason: str | None
    n_tokens: int | None
    verifier_version: str | None
    verify_ms: float | None
    base_verdict: str | None
    flip: Flip | None = Field(description="against the base model's first record of this item; null when there is none")


class Diff(Body):
    """Paired comparison of evaluation ``b`` (now) with evaluation ``a`` (before) on the items both asked."""

    a: str
    b: str
    suite: str
    n: int
    only_a: int
    only_b: int
    lost: float
    gained: float
    delta: float | None
    ci: Interval | None
    p_value: float | None
    test: str
    lost_items: list[str]
    gained_items: list[str]
