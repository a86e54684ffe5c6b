"""Which checkpoints a line goes through, and which points on it are wanted: from the recipe and the run's rows.

Nothing is read here but rows. Defaults follow the paper's appendix E.1 (see :mod:`core.recipes.weights`).
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy.orm import Session

from core.engines.lines import FittedLine, FolderWeights, TwoPointLine, Weights
from core.jobs import UserError
from core.recipes.weights import FIRST_ANCHOR, Extrapolation
from core.store import checkpoints
from core.store.models import Checkpoint, Run


@dataclass(frozen=True)
class Anchor:
    """One checkpoint of the line."""

    step: int
    id: str
    sha256: str
    folder: Path

    def as_dict(self) -> dict[str, Any]:
        """For provenance and results; never the path."""
        return {"step": self.step, "checkpoint": self.id, "sha256": self.sha256}


@dataclass(frozen=True)
class Target:
    """One point of the line, by its share of the way from a to b and by its training step."""

    beta: float
    step: float

    @property
    def row_step(self) -> int:
        """The whole step that a checkpoint of this point is named by."""
        return round(self.step)


@dataclass(frozen=True)
class Line:
    """The anchors in order of their steps, a first and b last, and how weights follow from them."""

    anchors: tuple[Anchor, ...]
    fit: str
    skip_norms: bool

    @property
    def a(self) -> Anchor:
        """The first anchor: beta 0."""
        return self.anchors[0]

    @property
    def b(self) -> Anchor:
        """The second: beta 1."""
        return self.anchors[-1]

    def at(self, target: Target, stack: ExitStack) -> Weights:
        """The weights at ``target``; files stay open as long as ``stack``."""
        opened = [(float(one.step), stack.enter_context(FolderWeights(one.folder))) for one in self.anchors]
        if self.fit == "least_squares":
            return FittedLine(opened, target.step, skip_norms=self.skip_norms)
        return TwoPointLine(opened[0][1], opened[-1][1], target.beta, skip_norms=self.skip_norms)

    def provenance(self, target: Target) -> dict[str, Any]:
        """Everything from which the weights at ``target`` can be computed again."""
        return {
            "fit": self.fit,
            "beta": target.beta,
            "target_step": target.step,
            "skip_norms": self.skip_norms,
            "anchors": [one.as_dict() for one in self.anchors],
        }


def find_line(session: Session, home: Path, run: Run, block: Extrapolation) -> Line:
    """Return the line that ``block`` means among the run's checkpoints; raises :class:`UserError` naming those there are."""
    rows = {row.step: row for row in _trajectory(session, run)}
    b = _chosen(rows, block.b, "b", run) if block.b is not None else rows[max(rows)] if rows else None
    if b is None or (earlier := [step for step in rows if step < b.step]) == []:
        raise UserError("no_line", f"a line needs two checkpoints of run {run.id}, which {_have(rows)}")
    default = min(earlier, key=lambda step: (abs(step - FIRST_ANCHOR * b.step), step))
    a = _chosen(rows, block.a, "a", run) if block.a is not None else rows[default]
    if a.step >= b.step:
        raise UserError("no_line", f"a is step {a.step} and b step {b.step}; a is the earlier checkpoint")
    between = [rows[step] for step in sorted(rows) if a.step <= step <= b.step]
    used = between if block.fit == "least_squares" else [a, b]
    return Line(tuple(_anchor(row, home) for row in used), block.fit, block.skip_norms)


def targets_of(line: Line, block: Extrapolation) -> list[Target]:
    """The points that are asked for, nearest first."""
    width = line.b.step - line.a.step
    if block.target_steps is not None:
        return sorted((Target((step - line.a.step) / width, step) for step in block.target_steps), key=_place)
    return sorted((Target(beta, line.a.step + beta * width) for beta in block.betas), key=_place)


def check_names(targets: Sequence[Target]) -> None:
    """Refuse points that would be one checkpoint, since these are named by their whole step."""
    named: dict[int, Target] = {}
    for target in targets:
        other = named.setdefault(target.row_step, target)
        if other is not target:
            raise UserError(
                "points_too_near",
                f"beta {other.beta:g} and beta {target.beta:g} both lie at step {target.row_step}, by which the checkpoint "
                "would be named; leave one out",
            )


def _place(target: Target) -> float:
    return target.beta


def _trajectory(session: Session, run: Run) -> list[Checkpoint]:
    """The run's checkpoints and, of a fork, the parent's that it began with; the latest attempt's of each step."""
    rows = checkpoints.list_(session, run.id)
    if run.parent_id is not None and run.parent_step is not None:
        start = checkpoints.at_step(session, run.parent_id, run.parent_step)
        rows = [start, *rows] if start is not None else rows
    return rows


def _chosen(rows: dict[int, Checkpoint], step: int, field: str, run: Run) -> Checkpoint:
    if step not in rows:
        raise UserError("unknown_checkpoint", f"{field} is step {step}, but run {run.id} {_have(rows)}")
    return rows[step]


def _have(rows: dict[int, Checkpoint]) -> str:
    return f"has checkpoints of steps {', '.join(map(str, sorted(rows)))}" if rows else "has no checkpoint"


def _anchor(row: Checkpoint, home: Path) -> Anchor:
    return Anchor(row.step, row.id, row.sha256, home / row.path)
