"""The tables, as SQLAlchemy models. Columns and keys only: what a row may become is decided in the repositories.

Bulk tables (metrics, rollouts, item records) are keyed for the one query that must be fast; everything else has a random
id. Rows of an attempt that a resume went back behind are marked `superseded` and stay.
"""

from typing import Any

from sqlalchemy import ForeignKey, Index, MetaData, SmallInteger, String, Text, UniqueConstraint, true
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from core.store.states import AttemptState, RunState
from core.store.types import Big, DisplayText, Document, Finite, Hash, Id, Name, new_id

NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}
"""Names for every constraint from the first revision on: SQLite cannot drop one that has no name."""


class Base(DeclarativeBase):
    """Base of all tables."""

    metadata = MetaData(naming_convention=NAMING)
    type_annotation_map = {str: Name, int: Big, float: Finite, dict[str, Any]: Document, list[Any]: Document}  # noqa: RUF012


def _id() -> Mapped[str]:
    return mapped_column(Id, primary_key=True, default=new_id)


def _run() -> Mapped[str]:
    return mapped_column(Id, ForeignKey("runs.id"))


def _superseded() -> Mapped[bool]:
    return mapped_column(default=False)


class Run(Base):
    """One accepted recipe, the job itself: its state, its lease and its progress."""

    __tablename__ = "runs"
    __table_args__ = (
        Index(None, "state", "priority", "seq"),
        Index(None, "family_hash"),
        Index(None, "lease_expires_at"),
        {"sqlite_autoincrement": True},
    )

    seq: Mapped[int] = mapped_column(Big, primary_key=True, autoincrement=True)
    id: Mapped[str] = mapped_column(Id, unique=True, default=new_id)
    kind: Mapped[str] = mapped_column(String(16))
    name: Mapped[str]
    state: Mapped[str] = mapped_column(String(16), default=RunState.QUEUED)
    recipe: Mapped[dict[str, Any]]
    submitted: Mapped[dict[str, Any]]
    recipe_hash: Mapped[str] = mapped_column(Hash)
    family_hash: Mapped[str] = mapped_column(Hash)
    model: Mapped[str | None]
    device_kind: Mapped[str | None] = mapped_column(String(16))
    """Kind of device the recipe asks for, the only kind of worker that may claim the run; null when any will do."""
    priority: Mapped[int] = mapped_column(default=0)
    created_at: Mapped[float]
    queued_at: Mapped[float | None]
    started_at: Mapped[float | None]
    finished_at: Mapped[float | None]
    cancel_requested_at: Mapped[float | None]
    pause_requested_at: Mapped[float | None]
    parent_id: Mapped[str | None] = mapped_column(Id, ForeignKey("runs.id"))
    parent_step: Mapped[int | None]
    recipe_diff: Mapped[dict[str, Any] | None]
    exploratory: Mapped[bool] = mapped_column(default=False)
    outcome_reason: Mapped[str | None] = mapped_column(Text)
    error: Mapped[dict[str, Any] | None]
    phase: Mapped[str | None] = mapped_column(String(32))
    progress_done: Mapped[int | None]
    progress_total: Mapped[int | None]
    progress_unit: Mapped[str | None] = mapped_column(String(32))
    step: Mapped[int | None]
    attempt: Mapped[int] = mapped_column(default=0)
    fence: Mapped[int] = mapped_column(default=0)
    lease_worker: Mapped[str | None] = mapped_column(Id)
    lease_expires_at: Mapped[float | None]
    max_attempts: Mapped[int] = mapped_column(default=3)
    rung_at: Mapped[float | None]
    after: Mapped[list[Any]] = mapped_column(Document, default=list)
    # No foreign key: prespecifications point back at runs, and a cycle of tables cannot be created or copied in order.
    prespecification_id: Mapped[str | None] = mapped_column(Id)
    run_of_family: Mapped[int] = mapped_column(default=1)
    deleted_at: Mapped[float | None]
    probe: Mapped[bool] = mapped_column(default=False)


class RunAfter(Base):
    """`runs.after` as rows, written once with it, so that the claim can ask in SQL whether all of them succeeded."""

    __tablename__ = "run_after"
    __table_args__ = (Index(None, "after_id"),)

    run_id: Mapped[str] = mapped_column(Id, ForeignKey("runs.id"), primary_key=True)
    after_id: Mapped[str] = mapped_column(Id, ForeignKey("runs.id"), primary_key=True)


class RunTag(Base):
    """One tag of one run."""

    __tablename__ = "run_tags"
    __table_args__ = (Index(None, "tag"),)

    run_id: Mapped[str] = mapped_column(Id, ForeignKey("runs.id"), primary_key=True)
    tag: Mapped[str] = mapped_column(primary_key=True)


class Attempt(Base):
    """One execution of a run by a worker."""

    __tablename__ = "attempts"
    __table_args__ = (UniqueConstraint("run_id", "number"),)

    id: Mapped[str] = _id()
    run_id: Mapped[str] = _run()
    number: Mapped[int]
    state: Mapped[str] = mapped_column(String(16), default=AttemptState.CLAIMED)
    worker_id: Mapped[str] = mapped_column(Id)
    fence: Mapped[int]
    device: Mapped[dict[str, Any] | None]
    versions: Mapped[dict[str, Any] | None]
    runner_pid: Mapped[int | None]
    started_at: Mapped[float]
    heartbeat_at: Mapped[float]
    ended_at: Mapped[float | None]
    end_reason: Mapped[str | None] = mapped_column(Text)
    resumed_from_step: Mapped[int | None]
    counted: Mapped[bool] = mapped_column(default=True)
    """Whether an interruption counts towards `max_attempts`; a drain asked for by the operator does not."""


class Worker(Base):
    """A worker process, alive as long as its heartbeat is fresh."""

    __tablename__ = "workers"

    id: Mapped[str] = _id()
    hostname: Mapped[str]
    pid: Mapped[int]
    device: Mapped[dict[str, Any] | None]
    started_at: Mapped[float]
    heartbeat_at: Mapped[float]
    current_run_id: Mapped[str | None] = mapped_column(Id)
    unready_reason: Mapped[str | None] = mapped_column(Text)
    """Why the worker, though alive, claims nothing until it is started anew; null while all is well."""


class Lease(Base):
    """A named lease, such as the sweeper's: one owner until it expires."""

    __tablename__ = "leases"

    name: Mapped[str] = mapped_column(primary_key=True)
    owner: Mapped[str]
    expires_at: Mapped[float]


class Outbox(Base):
    """A doorbell to ring: written with the change that made the run claimable, sent after the commit."""

    __tablename__ = "outbox"
    __table_args__ = (Index(None, "sent_at", "id"), {"sqlite_autoincrement": True})

    id: Mapped[int] = mapped_column(Big, primary_key=True, autoincrement=True)
    run_id: Mapped[str] = mapped_column(Id, ForeignKey("runs.id"), index=True)
    created_at: Mapped[float]
    sent_at: Mapped[float | None]
    tries: Mapped[int] = mapped_column(default=0)


class Event(Base):
    """One entry of a run's audit trail; `seq` rises with commit order within a run."""

    __tablename__ = "events"
    __table_args__ = (Index(None, "run_id", "seq"), {"sqlite_autoincrement": True})

    seq: Mapped[int] = mapped_column(Big, primary_key=True, autoincrement=True)
    run_id: Mapped[str] = _run()
    attempt: Mapped[int | None]
    type: Mapped[str] = mapped_column(String(64))
    at: Mapped[float]
    payload: Mapped[dict[str, Any]]


class MetricSeries(Base):
    """Size and ends of one curve's current view, kept beside the points so that nobody has to count them."""

    __tablename__ = "metric_series"

    run_id: Mapped[str] = mapped_column(Id, ForeignKey("runs.id"), primary_key=True)
    key: Mapped[str] = mapped_column(primary_key=True)
    count: Mapped[int]
    first_step: Mapped[int]
    last_step: Mapped[int]


class Metric(Base):
    """One point of one curve. `level` is the number of trailing zero bits of `step` (62 for step 0): rows with
    level >= k are exactly those on the stride 2**k, and the index finds them without reading the others."""

    __tablename__ = "metrics"
    __table_args__ = (
        Index(
            "ix_metrics_level", "run_id", "key", "superseded", "level", "step", "attempt", "value", "nonfinite", "at"
        ),
    )

    run_id: Mapped[str] = mapped_column(Id, ForeignKey("runs.id"), primary_key=True)
    key: Mapped[str] = mapped_column(primary_key=True)
    step: Mapped[int] = mapped_column(primary_key=True)
    attempt: Mapped[int] = mapped_column(primary_key=True)
    level: Mapped[int] = mapped_column(SmallInteger)
    value: Mapped[float | None]
    nonfinite: Mapped[str | None] = mapped_column(String(4))
    at: Mapped[float]
    superseded: Mapped[bool] = _superseded()


class Checkpoint(Base):
    """A complete checkpoint folder; `path` is relative to the service's home."""

    __tablename__ = "checkpoints"
    __table_args__ = (UniqueConstraint("run_id", "attempt", "step"), Index(None, "sha256"))

    id: Mapped[str] = _id()
    run_id: Mapped[str] = _run()
    attempt: Mapped[int]
    step: Mapped[int]
    path: Mapped[str] = mapped_column(Text)
    sha256: Mapped[str] = mapped_column(Hash)
    bytes: Mapped[int]
    has_optimizer: Mapped[bool]
    provenance: Mapped[dict[str, Any]]
    created_at: Mapped[float]
    deleted_at: Mapped[float | None]
    superseded: Mapped[bool] = _superseded()


class CheckpointFile(Base):
    """One file of a checkpoint."""

    __tablename__ = "checkpoint_files"

    checkpoint_id: Mapped[str] = mapped_column(Id, ForeignKey("checkpoints.id"), primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    bytes: Mapped[int]
    sha256: Mapped[str] = mapped_column(Hash)


class Prompt(Base):
    """A rendered prompt, stored once; the key is the hash of its token ids."""

    __tablename__ = "prompts"

    sha256: Mapped[str] = mapped_column(Hash, primary_key=True)
    token_ids: Mapped[list[Any]]
    text: Mapped[str] = mapped_column(DisplayText)


class Evaluation(Base):
    """One pass of one model over one suite under fixed decoding; counts only when `status` is finished."""

    __tablename__ = "evaluations"
    __table_args__ = (Index(None, "run_id", "suite", "step"),)

    id: Mapped[str] = _id()
    run_id: Mapped[str] = _run()
    attempt: Mapped[int]
    step: Mapped[int | None]
    purpose: Mapped[str] = mapped_column(String(16))
    model_ref: Mapped[str]
    checkpoint_sha256: Mapped[str | None] = mapped_column(Hash)
    suite: Mapped[str]
    split: Mapped[str | None]
    mode: Mapped[str] = mapped_column(String(16))
    samples: Mapped[int]
    params: Mapped[dict[str, Any]]
    engine: Mapped[dict[str, Any]]
    dataset_hash: Mapped[str | None] = mapped_column(Hash)
    verifier: Mapped[str | None]
    verifier_version: Mapped[str | None]
    n_items: Mapped[int]
    status: Mapped[str] = mapped_column(String(16), default="running")
    accuracy: Mapped[float | None]
    ci_low: Mapped[float | None]
    ci_high: Mapped[float | None]
    correct: Mapped[float | None]
    truncated_share: Mapped[float | None]
    no_answer_share: Mapped[float | None]
    mean_tokens: Mapped[float | None]
    measures: Mapped[dict[str, Any] | None]
    created_at: Mapped[float]
    finished_at: Mapped[float | None]
    superseded: Mapped[bool] = _superseded()


class ItemRecord(Base):
    """One completion of one item in one evaluation, with its verdict."""

    __tablename__ = "item_records"
    __table_args__ = (
        UniqueConstraint("evaluation_id", "item_id", "sample"),
        Index(None, "evaluation_id", "position", "sample"),
        {"sqlite_autoincrement": True},
    )

    id: Mapped[int] = mapped_column(Big, primary_key=True, autoincrement=True)
    evaluation_id: Mapped[str] = mapped_column(Id, ForeignKey("evaluations.id"))
    item_id: Mapped[str]
    cluster: Mapped[str | None]
    """What the item shares with others, such as a source text; null where it stands alone."""
    position: Mapped[int]
    sample: Mapped[int] = mapped_column(default=0)
    prompt_sha256: Mapped[str] = mapped_column(Hash)
    token_ids: Mapped[list[Any]]
    text: Mapped[str] = mapped_column(DisplayText)
    gold: Mapped[str | None] = mapped_column(DisplayText)
    extracted: Mapped[str | None] = mapped_column(DisplayText)
    verdict: Mapped[str] = mapped_column(String(16))
    reason: Mapped[str | None] = mapped_column(DisplayText)
    finish_reason: Mapped[str] = mapped_column(String(16))
    n_tokens: Mapped[int]
    verifier_version: Mapped[str | None]
    verify_ms: Mapped[float | None]
    details: Mapped[dict[str, Any] | None]


class Rollout(Base):
    """One training sample."""

    __tablename__ = "rollouts"
    __table_args__ = (Index(None, "run_id", "step", "id"), {"sqlite_autoincrement": True})

    id: Mapped[int] = mapped_column(Big, primary_key=True, autoincrement=True)
    run_id: Mapped[str] = _run()
    attempt: Mapped[int]
    step: Mapped[int]
    group_index: Mapped[int]
    item_id: Mapped[str]
    sample: Mapped[int]
    prompt_sha256: Mapped[str] = mapped_column(Hash)
    token_ids: Mapped[list[Any]]
    text: Mapped[str] = mapped_column(DisplayText)
    reward: Mapped[float | None]
    reward_terms: Mapped[dict[str, Any]]
    verdict: Mapped[str | None] = mapped_column(String(16))
    reason: Mapped[str | None] = mapped_column(DisplayText)
    extracted: Mapped[str | None] = mapped_column(DisplayText)
    advantage: Mapped[float | None]
    logp_mean: Mapped[float | None]
    n_tokens: Mapped[int]
    finish_reason: Mapped[str] = mapped_column(String(16))
    zero_variance: Mapped[bool] = mapped_column(default=False)
    used: Mapped[bool] = mapped_column(default=True, server_default=true())
    weights_version: Mapped[int | None]
    superseded: Mapped[bool] = _superseded()


class Look(Base):
    """One evaluation of the held-out suite at which the damage rule was asked."""

    __tablename__ = "looks"
    __table_args__ = (UniqueConstraint("run_id", "attempt", "step", "suite", "reference"),)

    id: Mapped[str] = _id()
    run_id: Mapped[str] = _run()
    attempt: Mapped[int]
    step: Mapped[int]
    number: Mapped[int]
    evaluation_id: Mapped[str] = mapped_column(Id, ForeignKey("evaluations.id"))
    checkpoint_sha256: Mapped[str | None] = mapped_column(Hash)
    suite: Mapped[str]
    reference: Mapped[str] = mapped_column(String(64))
    n: Mapped[int]
    accuracy: Mapped[float | None]
    ci_low: Mapped[float | None]
    ci_high: Mapped[float | None]
    lost: Mapped[float]
    gained: Mapped[float]
    d_histogram: Mapped[dict[str, Any]]
    statistic: Mapped[float | None]
    threshold: Mapped[float | None]
    decided: Mapped[bool] = mapped_column(default=False)
    state: Mapped[str] = mapped_column(String(32))
    draw: Mapped[list[Any]]
    rule_state: Mapped[dict[str, Any]]
    created_at: Mapped[float]
    superseded: Mapped[bool] = _superseded()


class Prespecification(Base):
    """A frozen document: what was claimed before the first result."""

    __tablename__ = "prespecifications"

    id: Mapped[str] = _id()
    run_id: Mapped[str | None] = mapped_column(Id, ForeignKey("runs.id"), index=True)
    document: Mapped[dict[str, Any]]
    canonical: Mapped[str] = mapped_column(Text)
    hash: Mapped[str] = mapped_column(Hash, index=True)
    automatic: Mapped[bool]
    exploratory: Mapped[bool]
    clock: Mapped[str] = mapped_column(String(16), default="local")
    frozen_at: Mapped[float]
    log_seq: Mapped[int] = mapped_column(Big, ForeignKey("log_entries.seq"), unique=True)
    amendments: Mapped[list[Any]] = mapped_column(Document, default=list)


class LogEntry(Base):
    """One link of the append-only log; triggers refuse to change or delete it."""

    __tablename__ = "log_entries"

    seq: Mapped[int] = mapped_column(Big, primary_key=True, autoincrement=False)
    type: Mapped[str] = mapped_column(String(32))
    payload: Mapped[dict[str, Any]]
    payload_hash: Mapped[str] = mapped_column(Hash)
    previous_hash: Mapped[str] = mapped_column(Hash)
    hash: Mapped[str] = mapped_column(Hash, unique=True)
    claimed_at: Mapped[float]


class ApiToken(Base):
    """A bearer token; only its hash is kept."""

    __tablename__ = "api_tokens"

    id: Mapped[str] = _id()
    name: Mapped[str]
    token_hash: Mapped[str] = mapped_column(Hash, unique=True)
    scope: Mapped[str] = mapped_column(String(16))
    created_at: Mapped[float]
    last_used_at: Mapped[float | None]
    revoked_at: Mapped[float | None]


class IdempotencyKey(Base):
    """What was answered to a request that carried a key, so that a repeat gets the same answer."""

    __tablename__ = "idempotency_keys"

    scope_id: Mapped[str] = mapped_column(String(64), primary_key=True)
    key: Mapped[str] = mapped_column(primary_key=True)
    body_hash: Mapped[str] = mapped_column(Hash)
    state: Mapped[str] = mapped_column(String(16))
    status_code: Mapped[int | None]
    response: Mapped[dict[str, Any] | None]
    created_at: Mapped[float]


class Analysis(Base):
    """One computed result of an analysis run."""

    __tablename__ = "analyses"

    id: Mapped[str] = _id()
    run_id: Mapped[str] = mapped_column(Id, ForeignKey("runs.id"), index=True)
    target_run_id: Mapped[str] = mapped_column(Id, ForeignKey("runs.id"), index=True)
    name: Mapped[str]
    params: Mapped[dict[str, Any]]
    result: Mapped[dict[str, Any]]
    figures: Mapped[list[Any]] = mapped_column(Document, default=list)
    created_at: Mapped[float]
    attempt: Mapped[int]


import core.store.grading_models  # noqa: E402, F401 - its tables belong to this metadata, and it needs Base
