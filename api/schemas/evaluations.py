"""Evaluations, their items, and the paired comparison of two of them."""

from typing import Literal

from pydantic import Field

from api.schemas.common import Body, Document, Interval, Time

Flip = Literal["lost", "gained", "same"]


class Regrade(Body):
    """One later grading of an evaluation's stored answers; the original verdicts stay."""

    id: str
    run_id: str = Field(description="the run that graded")
    verifier: str
    verifier_version: str
    records: int | None
    changed: int | None = Field(description="records whose verdict is another than the original one")
    correct: float | None
    accuracy: float | None
    ci: Interval | None
    measures: Document | None
    created_at: Time
    finished_at: Time | None


class LaterVerdict(Body):
    """What one later grading said of one record."""

    regrade_id: str
    verifier_version: str
    verdict: str
    reason: str | None
    extracted: str | None


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
    measures: Document | None = Field(
        description="standard error, clusters, pass_at_k, verdicts, tokens, timing, details"
    )
    regrades: list[Regrade]
    superseded: bool
    created_at: Time
    finished_at: Time | None


class Item(Body):
    """One greedy (or sampled) record."""

    item_id: str
    cluster: str | None = Field(description="what the item shares with others; null when it stands alone")
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
    details: Document | None
    regrades: list[LaterVerdict]
    base_verdict: str | None
    flip: Flip | None = Field(description="against the base model's first record of this item; null when there is none")


class NoiseFloor(Body):
    """How much two evaluations of one model differ by themselves."""

    a: str
    b: str
    n: int
    lost: int
    gained: int
    delta: float
    flipped_share: float


class Diff(Body):
    """Paired comparison of evaluation ``b`` (now) with evaluation ``a`` (before) on the items both asked."""

    a: str
    b: str
    suite: str
    verdicts: str
    verifier_version: str | None
    a_regrade: str | None = Field(description="later grading that was compared; null for the original verdicts")
    b_regrade: str | None
    same_data: bool | None = Field(description="whether both asked of items with one content hash; null when not known")
    n: int
    only_a: int
    only_b: int
    a_accuracy: float
    b_accuracy: float
    lost: float
    gained: float
    delta: float | None
    ci: Interval | None
    ci_method: str
    standard_error: float | None = Field(description="of delta, over clusters")
    clusters: int
    p_value: float | None
    test: str
    noise_floor: NoiseFloor | None
    lost_items: list[str]
    gained_items: list[str]
