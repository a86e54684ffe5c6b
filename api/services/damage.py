"""The damage-stop document of a run: collects the facts that ``core.damage.status`` turns into a judgement.

It reads looks, base evaluations and the frozen prespecification, and judges nothing itself. The document holds no time of
day, so it stays the same, byte for byte, until something happened, and is made once for each thing that happens.
"""

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from sqlalchemy.orm import Session

from api.times import iso
from core.damage.status import BaseFacts, PrespecFacts, RunFacts, build_status
from core.recipes import TrainRecipe, load_recipe
from core.store import evaluations, looks, prespecs, runs
from core.store.evaluations import CORRECT
from core.store.models import Look, Prespecification, Run
from core.train.prespecify import steps_of_looks

_REMEMBERED = 256


@dataclass(frozen=True)
class Answer:
    """The document as sent. ``judged_by`` is what it was made from: see :func:`core.store.looks.judged_by`."""

    body: bytes
    etag: str
    judged_by: tuple[Any, ...]


class Answers:
    """The answers of the runs that were asked about last: clients poll, and between two looks nothing changes."""

    def __init__(self) -> None:
        self._of_run: dict[str, Answer] = {}

    def get(self, session: Session, run_id: str) -> Answer:
        """Return the answer for the run of this id or unique beginning of it; raises ``NotFound``."""
        known = self._of_run.get(run_id)
        if known is not None and known.judged_by == looks.judged_by(session, run_id):
            return known
        run = runs.get(session, run_id)
        judged_by = looks.judged_by(session, run.id)
        body = json.dumps(status(session, run), allow_nan=False, separators=(",", ":")).encode()
        answer = Answer(body, f'"{hashlib.sha256(body).hexdigest()[:32]}"', judged_by or ())
        while len(self._of_run) >= _REMEMBERED:
            self._of_run.popitem()
        self._of_run[run.id] = answer
        return answer


def status(session: Session, run: Run) -> dict[str, Any]:
    """The document of ``GET /runs/{id}/damage-stop``. A run of another kind, or without a rule, says so in it."""
    if run.kind != "train":
        return build_status(run=RunFacts(run.id, run.state), rule=None, looks=[])
    rows = looks.list_(session, run.id, reference="base", whole=False)
    plan = run.recipe.get("looks") or {}
    suites = list(plan.get("suites") or ["holdout"])
    suite = suites[0]  # it alone carries the damage stop
    own = [row for row in rows if row.suite == suite]
    prespec = prespecs.get(session, run.prespecification_id) if run.prespecification_id else None
    rule = _rule(prespec)
    task = {"holdout", run.recipe["data"]["dataset"]}
    return build_status(
        run=RunFacts(run.id, run.state, _look_steps(run)),
        rule=rule,
        looks=own,
        base=_base(session, run, suite, rule),
        prespec=_frozen(prespec),
        out_of_domain=[name for name in suites if name not in task and any(row.suite == name for row in rows)],
    )


def look(row: Look) -> dict[str, Any]:
    """A look as the API shows it."""
    return {
        "id": row.id,
        "run_id": row.run_id,
        "attempt": row.attempt,
        "step": row.step,
        "number": row.number,
        "evaluation_id": row.evaluation_id,
        "checkpoint_sha256": row.checkpoint_sha256,
        "suite": row.suite,
        "reference": row.reference,
        "n": row.n,
        "accuracy": row.accuracy,
        "ci": None if row.ci_low is None else [row.ci_low, row.ci_high],
        "lost": row.lost,
        "gained": row.gained,
        "d_histogram": row.d_histogram,
        "statistic": row.statistic,
        "threshold": row.threshold,
        "decided": row.decided,
        "state": row.state,
        "created_at": iso(row.created_at),
    }


def _look_steps(run: Run) -> list[int]:
    """Steps of the planned looks, a fork's from the step it begins at."""
    recipe = load_recipe(run.recipe)
    return steps_of_looks(recipe, run.parent_step or 0) if isinstance(recipe, TrainRecipe) else []


def _rule(prespec: Prespecification | None) -> dict[str, Any] | None:
    """The rule as frozen; before a document exists there is none."""
    if prespec is None:
        return None
    rule = prespec.document.get("analysis", {}).get("rule")
    return rule if isinstance(rule, dict) else None


def _base(session: Session, run: Run, suite: str, rule: dict[str, Any] | None) -> BaseFacts | None:
    rows = evaluations.base_evaluations(session, run.id, suite)
    first = rows[0] if rows else None
    if first is None or first.accuracy is None or first.ci_low is None or first.ci_high is None:
        return None
    # Only the e-process averages its base runs; the panel rules take the first, and the second is their noise floor.
    used = rows if rule and rule.get("rule") == "eprocess" else rows[:1]
    known = [row.correct for row in used if row.correct is not None]
    correct = sum(known) / len(known) if len(known) == len(used) else None
    noise_floor = _flips(session, rows[0].id, rows[1].id) if len(rows) > 1 else None
    return BaseFacts(first.accuracy, first.ci_low, first.ci_high, noise_floor=noise_floor, correct=correct)


def _flips(session: Session, first: str, second: str) -> float | None:
    """Share of items whose verdict differs between two finished evaluations."""
    before, after = evaluations.verdicts(session, first), evaluations.verdicts(session, second)
    shared = before.keys() & after.keys()
    flipped = sum((before[item][0] == CORRECT) != (after[item][0] == CORRECT) for item in shared)
    return flipped / len(shared) if shared else None


def _frozen(row: Prespecification | None) -> PrespecFacts | None:
    if row is None:
        return None
    return PrespecFacts(frozen_at=row.frozen_at, hash=row.hash, clock=row.clock, exploratory=row.exploratory)
