"""Runs: the document of one run, its row in a list, a dry run's answer, and the body of a fork."""

from typing import Annotated, Literal

from pydantic import Field

from api.schemas.common import Body, Document, Time

Kind = Literal["train", "eval", "analysis"]
RunStateName = Literal[
    "queued", "running", "pausing", "paused", "cancelling", "succeeded", "damage_stopped", "failed", "cancelled"
]


class Progress(Body):
    """How far the present phase is."""

    phase: str | None
    done: float | None
    total: float | None
    unit: str | None


class Liveness(Body):
    """Whether somebody is at work, and how that is known."""

    state: Literal["waiting", "alive", "silent", "lost", "paused", "ended"]
    reason: str
    worker_id: str | None
    heartbeat_at: Time | None
    lease_expires_at: Time | None


class Queue(Body):
    """Place in the queue (1 is next) and what the run waits for."""

    position: int
    why: str


class Eta(Body):
    """When the training steps end at the recent rate."""

    seconds: float
    at: Time
    basis: str


class Attempt(Body):
    """One execution of a run by a worker."""

    number: int
    state: str
    worker_id: str | None
    device: Document | None
    versions: Document | None
    started_at: Time | None
    heartbeat_at: Time | None
    ended_at: Time | None
    end_reason: str | None
    resumed_from_step: int | None


class RunError(Body):
    """Why a run failed: whose fault, a code, a sentence, and the end of the runner's log."""

    category: str | None = None
    code: str | None = None
    message: str | None = None
    log_tail: str | list[str] | None = None


class RunSummary(Body):
    """A run as lists show it."""

    id: str
    kind: Kind
    name: str | None
    state: RunStateName
    model: str | None
    tags: list[str]
    priority: int
    created_at: Time
    queued_at: Time | None
    started_at: Time | None
    finished_at: Time | None
    progress: Progress
    step: int | None = Field(description="last finished step")
    exploratory: bool
    parent_id: str | None
    outcome_reason: str | None
    recipe_hash: str


class Run(RunSummary):
    """Everything about a run that is not a series."""

    liveness: Liveness
    queue: Queue | None
    eta: Eta | None
    attempt: Attempt | None
    attempts: list[Attempt]
    device: Document | None
    recipe: Document = Field(description="the recipe with every default filled in")
    submitted: Document = Field(description="the recipe as it was sent")
    family_hash: str = Field(description="hash of the recipe without seed, name, tags and priority")
    run_of_family: int | None = Field(description="k: this is run k of its recipe family")
    parent_step: int | None
    recipe_diff: Document | list[Document] | None
    error: RunError | None
    prespecification_id: str | None
    probe: bool = Field(description="measured for two minutes instead of run")
    probe_report: Document | None = Field(description="what a finished probe measured")
    after: list[str]
    max_attempts: int
    cancel_requested_at: Time | None
    pause_requested_at: Time | None
    links: dict[str, str]


class CardPlan(Body):
    """Whether a recipe fits one card, what takes the memory, and the smallest change that makes it fit."""

    worker_id: str | None = Field(description="null: no worker is live, the plan is for the recipe's own `device`")
    device: Document
    fits: bool
    plan: Document
    smallest_change: str | None
    disk_free_gib: float = Field(description="free now where checkpoints are kept")
    disk_fits: bool = Field(
        description="whether all checkpoints of the plan fit there; runs that share the disk are not counted"
    )


class RecipeProblem(Body):
    """Something valid that cannot be done now: the field, why, and what to do."""

    param: str
    message: str
    hint: str | None


class DryRun(Body):
    """What would happen. Nothing was stored."""

    valid: bool
    recipe: Document
    recipe_hash: str
    family_hash: str
    features_missing: list[RecipeProblem]
    fits: bool = Field(description="on at least one of the cards below")
    cards: list[CardPlan]
    cost: Document
    prespecification: Document | None


class ForkFrom(Body):
    """Body of a fork. Overrides are merged into the parent's recipe (RFC 7396: null removes a field)."""

    from_step: Annotated[int, Field(strict=True, ge=0, le=2**53 - 1)] | Literal["last", "best", "scratch"] | None = (
        Field(
            default=None,
            description=(
                "a step with a checkpoint, the last or best one, or from scratch; by default the last checkpoint of a train "
                "run, and scratch for other kinds"
            ),
        )
    )
    overrides: Document = Field(default_factory=dict)
