"""Rollouts, checkpoints, analyses, events, log lines and prespecifications."""

from typing import Any

from pydantic import Field

from api.schemas.common import Body, Document, Time


class Rollout(Body):
    """One training sample."""

    id: str
    run_id: str
    attempt: int
    step: int
    group_index: int
    item_id: str
    sample: int
    prompt_sha256: str | None
    token_ids: list[int] | None
    text: str | None
    reward: float | None
    reward_terms: Document | None
    verdict: str | None
    reason: str | None
    extracted: str | None
    advantage: float | None
    logp_mean: float | None
    n_tokens: int | None
    finish_reason: str | None
    zero_variance: bool | None
    used: bool
    weights_version: int | None
    superseded: bool


class CheckpointFile(Body):
    """One downloadable file of a checkpoint."""

    name: str
    bytes: int
    sha256: str
    href: str


class Checkpoint(Body):
    """A complete checkpoint. Its place on disk is never told and never asked for."""

    id: str
    run_id: str
    attempt: int
    step: int
    sha256: str = Field(description="hash of the weights")
    bytes: int
    has_optimizer: bool
    provenance: Document | None
    created_at: Time
    superseded: bool
    files: list[CheckpointFile]


class Analysis(Body):
    """The result of one analysis over a run's checkpoints."""

    id: str
    run_id: str
    target_run_id: str | None
    name: str
    params: Document | None
    result: Any
    figures: list[str]
    attempt: int | None
    created_at: Time


class AnalysisSummary(Body):
    """An analysis as lists show it."""

    id: str
    run_id: str
    target_run_id: str | None
    name: str
    figures: list[str]
    created_at: Time


class Event(Body):
    """One entry of a run's audit trail."""

    seq: int
    run_id: str | None
    attempt: int | None
    type: str
    at: Time
    payload: Document | None


class LogEntry(Body):
    """One line of a runner's log; a line that names no level has the level of the line above it."""

    attempt: int
    level: str | None
    text: str


class Prespecification(Body):
    """What was frozen before the first look."""

    id: str
    run_id: str | None
    hash: str
    automatic: bool
    exploratory: bool
    clock: str
    frozen_at: Time
    document: Document
    amendments: list[Document]
