"""The damage-stop status and looks."""

from typing import Literal

from pydantic import ConfigDict, Field

from api.schemas.common import Body, Document, Interval, Time

DamageState = Literal["not_started", "insufficient", "no_damage_shown", "watch", "damaged", "stopped", "exhausted"]


class DamageStop(Body):
    """What the frozen rule says of a run. It changes with a look and at no other time."""

    model_config = ConfigDict(extra="allow")

    run_id: str
    state: DamageState
    statement: str = Field(description="one sentence a person can quote")
    rule: Document | None
    prespecified_at: Time | None
    clock: str | None
    first_look_at: Time | None
    spec_hash: str | None
    confirmatory: bool
    looks: int
    next_look_at_step: int | None
    base: Document | None
    current: Document | None
    paired: Document | None
    evidence: Document | None
    decided_at: Time | None
    decided_at_step: int | None
    action: str | None
    forgetting: str
    early_warnings: list[Document]


class Look(Body):
    """One evaluation of the held-out suite at which the stop rule was asked."""

    id: str
    run_id: str
    attempt: int
    step: int
    number: int
    evaluation_id: str | None
    checkpoint_sha256: str | None
    suite: str
    reference: str
    n: int
    accuracy: float | None
    ci: Interval | None
    lost: float | None
    gained: float | None
    d_histogram: Document | None
    statistic: float | None
    threshold: float | None
    decided: bool
    state: str | None
    created_at: Time
