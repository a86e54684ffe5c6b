"""What a runner hands to the job it runs, and what the job hands back. Every kind of job knows this and the store alone.

Jobs (training, evaluation, analysis) know neither Celery nor processes.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from core.recipes import AnalysisRecipe, EvalRecipe, TrainRecipe
from core.settings import Settings
from core.store.database import Database, Fence

Request = Literal["cancel", "pause", "drain"]


class UserError(Exception):
    """The job cannot run as asked, and trying again would not help: the person has to change something.

    ``code`` is stable and machine readable; the message says what is wrong and how to mend it.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class Control(Protocol):
    """The requests that reach a running job from outside; asked at every safe point of the job."""

    @property
    def requested(self) -> Request | None:
        """What was asked for, the most final request first: cancel, then pause, then drain; None while nothing was."""


@dataclass(frozen=True)
class Outcome:
    """How a job ended.

    ``state`` is a final state of the run, ``paused``, or ``interrupted`` (asked to drain: a checkpoint is written and the
    run goes back to the queue). ``error`` is set for ``failed`` alone: {category, code, message}.
    """

    state: Literal["succeeded", "damage_stopped", "failed", "cancelled", "paused", "interrupted"]
    reason: str
    error: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class RunContext:
    """One attempt of one run, as the runner gives it to the job.

    ``fence`` guards every write. ``device`` is {kind: "cpu" | "cuda", uuid, name, driver, memory_bytes} as pinned.
    """

    run_id: str
    attempt: int
    fence: Fence
    recipe: TrainRecipe | EvalRecipe | AnalysisRecipe
    settings: Settings
    db: Database
    control: Control
    device: Mapping[str, Any]
    log: logging.Logger
    probe: bool = False
    """Whether a train recipe is only probed: measured for two minutes instead of run."""
