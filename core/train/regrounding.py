"""Periodic re-grounding: after every m real steps from W_s to W_e the run goes on from W_e + (n/m)(W_e - W_s).

The jump is taken in fp32 on the masters, which write the weights; items, random streams and the learning rate's schedule know
nothing of it and go on. The state of a step that ends a cycle is the one after the jump: its checkpoint, its look and the
next cycle's W_s. W_s is read from that checkpoint, so a run in the middle of a cycle needs it (``CYCLE_START`` of its
provenance). Which n is taken is the recipe's, or with ``adaptive`` decided by :mod:`core.train.candidates`. (Paper, section
6.3 and appendix E.2.)
"""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

import torch

from core.engines.base import Engine, SamplingParams
from core.engines.lines import FolderWeights, NamedOnly, OnHost, TwoPointLine, Weights, distance
from core.engines.models import WEIGHTS_FILE
from core.engines.tensor_writer import no_progress, write_safetensors
from core.evals.stored import Evaluator, Scores
from core.jobs import RunContext
from core.recipes import TrainRecipe
from core.recipes.regrounding import Regrounding
from core.store import checkpoints, events, metrics
from core.tasks.items import ItemSet
from core.train.candidates import Choice, Draw, choose
from core.train.policy import Policy
from core.train.validation import Interrupted, Validation
from core.train.versions import JUMPED, weights_version

DECISION = "regrounding_decision"
JUMP = "jump"


class Regrounder:
    """Follows the steps of one attempt and jumps where a cycle ends.

    ``begins_at`` is a fork's step in its parent, else 0. ``validation`` is there with ``adaptive`` alone.
    """

    def __init__(
        self,
        context: RunContext,
        recipe: TrainRecipe,
        block: Regrounding,
        *,
        policy: Policy,
        engine: Engine,
        validation: Validation | None,
        begins_at: int,
    ) -> None:
        self._context = context
        self._recipe = recipe
        self._block = block
        self._policy = policy
        self._engine = engine
        self._validation = validation
        self._begins_at = begins_at
        self._followed = begins_at
        self._extra = 0
        self.start: int | None = begins_at if block.origin(begins_at) == begins_at else None
        """Step of the checkpoint that the running cycle began with; None before the first cycle."""

    def state(self) -> dict[str, Any]:
        """What a checkpoint has to hold of the cycle."""
        return {"start": self.start, "extra": self._extra}

    def restore(self, step: int, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint of this run. Where its cycle ended undecided, the jump is still to come."""
        self.start, self._extra = state["start"], state["extra"]
        ends = self._block.jumps_after(step, self._begins_at)
        self._followed = step - 1 if ends and self.start != step else step
        if ends and self.start == step:
            self._engine.update_weights(weights_version(self._recipe, step, JUMPED))

    def follow(self, step: int) -> bool | None:
        """Do what belongs to ``step`` after its updates; whether a new cycle begins, None when interrupted.

        After True the caller saves a checkpoint, since the next cycle needs it. Interrupted, the weights are W_e again.
        """
        if step <= self._followed:
            return False
        begins = self._block.jumps_after(step, self._begins_at)
        if begins:
            try:
                self._end_cycle(step)
            except Interrupted:
                return None
        elif step == self._block.origin(self._begins_at):
            self.start, begins = step, True
        self._followed = step
        self._record(step, {"regrounding/effective_steps": float(step + self._extra)})
        return begins

    def _end_cycle(self, step: int) -> None:
        began = monotonic()
        end = OnHost(self._policy.optimizer.masters)
        with FolderWeights(self._start_folder()) as folder:
            start = NamedOnly(folder, end)
            moved = distance(start, end)
            choice = self._choose(step, start, end) if self._block.adaptive else None
            n = self._block.n if choice is None else choice.n
            if choice is None:
                # Also a jump worth 0 has its version: what an attempt numbers must not depend on where it began.
                self._load(self._jump(start, end, n), step, JUMPED)
        if n and self._block.moments == "reset":
            self._policy.optimizer.reset_moments()
        self._tell(step, n, moved=moved, choice=choice, seconds=monotonic() - began)
        self.start = step
        self._extra += n

    def _choose(self, step: int, start: Weights, end: Weights) -> Choice:
        """Decide on validation items, and leave the weights of what was decided. W_e waits in a file meanwhile."""
        if self._validation is None:
            raise TypeError("adaptive re-grounding was built without validation items")
        aside = self._context.settings.run_dir(self._context.run_id) / "cycle-end"
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        shapes = {name: tuple(master.shape) for name, master in self._policy.optimizer.masters.items()}
        write_safetensors(aside / WEIGHTS_FILE, end, shapes, torch.float32, no_progress)
        with FolderWeights(aside) as kept:
            trial = _Trial(
                self._validation, step, load=lambda n, place: self._load(self._jump(start, kept, n), step, place)
            )
            try:
                choice = choose(self._block.candidates, trial.ask)
            except Interrupted:
                trial.put_back()
                raise
            trial.settle(choice.n)
        shutil.rmtree(aside)
        return choice

    def _jump(self, start: Weights, end: Weights, n: int) -> Weights:
        return TwoPointLine(start, end, 1 + n / self._block.m, skip_norms=self._block.skip_norms)

    def _load(self, weights: Weights, step: int, place: int) -> None:
        """Write the masters and, rounded, the weights, and tell the engine."""
        self._policy.optimizer.load_masters(weights)
        self._engine.update_weights(weights_version(self._recipe, step, place))

    def _start_folder(self) -> Path:
        with self._context.db.read() as session:
            row = None if self.start is None else checkpoints.at_step(session, self._context.run_id, self.start)
        if row is None:
            raise RuntimeError(f"the checkpoint of step {self.start}, with which this cycle began, is gone")
        return self._context.settings.home / row.path

    def _tell(self, step: int, n: int, *, moved: float, choice: Choice | None, seconds: float) -> None:
        block, context = self._block, self._context
        jump = {
            "step": step,
            "m": block.m,
            "n": n,
            "beta": 1 + n / block.m,
            "from_step": self.start,
            "moved": moved,
            "jumped": moved * n / block.m,
            "moments": block.moments,
            "skip_norms": block.skip_norms,
            "effective_steps": step + self._extra + n,
            "seconds": round(seconds, 3),
        }
        values = {"regrounding/n": float(n), "regrounding/moved": moved, "regrounding/decision_s": seconds}
        if choice is not None:
            found = {"validation_before": choice.accuracy(0), "validation_after": choice.accuracy(n)}
            values |= {f"regrounding/{name}": value for name, value in found.items() if value is not None}
        with context.db.fenced(context.fence) as session:
            if choice is not None:
                decision = {"step": step, **choice.as_dict(), "seconds": round(seconds, 3)}
                events.append(session, context.run_id, DECISION, decision, context.attempt)
            if n:
                events.append(session, context.run_id, JUMP, jump, context.attempt)
            metrics.record(session, context.fence, step, values)
        context.log.info("re-grounding after step %d: n = %d, the cycle moved %.4g", step, n, moved)

    def _record(self, step: int, values: Mapping[str, float]) -> None:
        with self._context.db.fenced(self._context.fence) as session:
            metrics.record(session, self._context.fence, step, values)


def regrounder_of(
    context: RunContext,
    recipe: TrainRecipe,
    policy: Policy,
    evaluator: Evaluator,
    *,
    params: SamplingParams,
    validation: ItemSet | None,
    begins_at: int,
) -> Regrounder | None:
    """Return what a recipe's ``regrounding`` asks for, None where it has none. ``params`` are the greedy ones of looks."""
    block = recipe.regrounding
    if block is None:
        return None
    asker = None if validation is None else Validation(context, recipe, evaluator, params, validation)
    return Regrounder(
        context, recipe, block, policy=policy, engine=evaluator.engine, validation=asker, begins_at=begins_at
    )


@dataclass
class _Trial:
    """The weights while a decision is made: a candidate is loaded only when it has to be asked, each load a new version."""

    validation: Validation
    step: int
    load: Callable[[int, int], None]
    _loaded: int = 0
    _place: int = 0
    _answers: dict[tuple[int, Draw], Scores | None] = field(default_factory=dict)

    def ask(self, n: int, draw: Draw) -> Scores | None:
        """The scores of a jump worth ``n``, asked once."""
        if (n, draw) not in self._answers:
            found = self.validation.known(self.step, n, draw)
            if found is None:
                self._become(n)
                found = self.validation.ask(self.step, n, draw)
            self._answers[n, draw] = found
        return self._answers[n, draw]

    def settle(self, n: int) -> None:
        """Leave the weights of ``n``, as the version with which the run goes on."""
        self.load(n, JUMPED)

    def put_back(self) -> None:
        """W_e again: what is saved now is the end of the cycle, still undecided."""
        self._become(0)

    def _become(self, n: int) -> None:
        if n != self._loaded:
            self._place += 1
            self.load(n, self._place)
            self._loaded = n
