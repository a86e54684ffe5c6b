"""The train job from beginning to end: prepare, base look, steps with their looks and checkpoints, outcome.

Every finished step is one transaction (curves, rollouts, progress), so no crash loses one. An attempt continues from the last
checkpoint and replays: streams are named by step, so the same samples, updates and looks come out again.
"""

import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from core.engines.base import NonFiniteLogitsError, SamplingParams
from core.engines.models import ModelError, stop_token_ids, text_decoder
from core.engines.references import find_model
from core.evals.engines import open_for_training, plan_training
from core.evals.memory import out_of_memory_explained
from core.evals.stored import Evaluator
from core.jobs import Outcome, RunContext, UserError
from core.recipes import TrainRecipe
from core.store import checkpoints as checkpoint_rows
from core.store import evaluations, events, metrics, queue, runs
from core.store.models import Checkpoint
from core.store.provenance import CYCLE_START
from core.tasks.pool import VerifierPool
from core.tasks.rewards import RewardSpec
from core.train import adapters, checkpoints, prespecify
from core.train.following import Follower
from core.train.guards import refuse_nonfinite_weights
from core.train.looks import LookKeeper
from core.train.pass_rate import Asker, filtered
from core.train.policy import Policy, load_policy
from core.train.prepare import Prepared, prepare
from core.train.progress import Progress
from core.train.regrounding import regrounder_of
from core.train.rewarding import rewards_of
from core.train.step import StepRunner
from core.train.stopping import StopConditions
from core.train.supervised import SupervisedRunner
from core.train.validation import Interrupted
from core.train.versions import weights_version


def run_training(context: RunContext, pool: VerifierPool | None = None) -> Outcome:
    """Run one attempt of a train run to its outcome. ``pool`` stays the caller's; None opens one for this attempt."""
    recipe = context.recipe
    if not isinstance(recipe, TrainRecipe):
        raise TypeError(f"run {context.run_id} is of kind {recipe.kind}, not train")
    _deterministic(context.device)
    with (
        contextlib.nullcontext(pool) if pool else VerifierPool() as grading,
        rewards_of(recipe, context.settings.rewards_dir) as rewards,
        out_of_memory_explained(context, recipe),
    ):
        try:
            training = _Training(context, recipe, grading, rewards)
        except Interrupted:
            return _requested(context) or Outcome("interrupted", "asked to end while pass rates were measured")
        with contextlib.closing(training):
            return training.run()


def _deterministic(device: Mapping[str, Any]) -> None:
    """On the CPU an interrupted run equals an undisturbed one bit for bit; on a card some kernels sum in any order."""
    if device["kind"] == "cpu":
        torch.use_deterministic_algorithms(True)


def _requested(context: RunContext) -> Outcome | None:
    match context.control.requested:
        case "cancel":
            return Outcome("cancelled", "cancelled by request")
        case "pause":
            return Outcome("paused", "paused by request")
        case "drain":
            return Outcome("interrupted", "the worker is shutting down")
        case None:
            return None


class _Training:
    """One attempt. Built in the order in which things can go wrong: model, data, prespecification."""

    def __init__(self, context: RunContext, recipe: TrainRecipe, pool: VerifierPool, rewards: RewardSpec) -> None:
        self._context = context
        self._recipe = recipe
        self._log: logging.Logger = context.log
        self._phase("prepare")
        with context.db.read() as session:
            self._run = runs.get(session, context.run_id)
        device = torch.device("cuda" if context.device["kind"] == "cuda" else "cpu")
        self._start = self._find(recipe.model)
        plan = plan_training(context, recipe, self._start)
        self._policy = self._load(self._start, device, plan.batches.layers)
        self._prepared: Prepared = prepare(recipe, context.settings, self._policy.tokenizer, pool)
        look_length = (recipe.looks.max_completion_length if recipe.looks else None) or recipe.max_completion_length
        self._engine = open_for_training(
            plan, self._policy.model, self._policy.tokenizer, self._start, weights=self._policy.rollout_weights
        )
        self._event("engine_opened", self._engine.settings())
        decode = text_decoder(self._policy.tokenizer)
        self._prepared = self._learnable(decode, pool)
        frozen = prespecify.load_or_freeze(
            context, recipe, self._prepared.suites, train=self._prepared.train, heldout=self._prepared.heldout
        )
        greedy = SamplingParams(
            temperature=0.0,
            max_tokens=look_length,
            stop_token_ids=stop_token_ids(self._policy.model, self._policy.tokenizer),
            stop=tuple(recipe.prompt.stop),
        )
        evaluator = Evaluator(context, self._engine, self._prepared.render, decode, pool)
        begins_at = self._run.parent_step or 0
        self._looks = LookKeeper(
            context,
            recipe,
            self._prepared,
            evaluator=evaluator,
            params=greedy,
            rule=frozen.rule,
            key=frozen.key,
            begins_at=begins_at,
        )
        self._steps: StepRunner | SupervisedRunner
        if recipe.algorithm.supervised:
            self._steps = SupervisedRunner(
                context,
                recipe,
                self._policy,
                self._prepared,
                engine=self._engine,
                micro_batch_tokens=plan.batches.micro,
            )
        else:
            self._steps = StepRunner(
                context,
                recipe,
                self._policy,
                self._prepared,
                engine=self._engine,
                params=replace(greedy, temperature=recipe.temperature, max_tokens=recipe.max_completion_length),
                decode=decode,
                pool=pool,
                micro_batch_tokens=plan.batches.micro,
                rewards=rewards,
            )
        self._regrounder = regrounder_of(
            context,
            recipe,
            self._policy,
            evaluator,
            params=greedy,
            validation=self._prepared.validation,
            begins_at=begins_at,
        )
        self._follower = Follower(context, recipe, self._policy, begins_at)
        self._progress = Progress()
        self._saved_step: int | None = None
        self._hashed: tuple[int, str] | None = None

    def _learnable(self, decode: Callable[[Sequence[int]], str], pool: VerifierPool) -> Prepared:
        """The data behind the pass-rate filter. The engine still holds the start weights here, in every attempt."""
        recipe, policy = self._recipe, self._policy
        if recipe.data.pass_rate is None:
            return self._prepared
        params = SamplingParams(
            temperature=recipe.temperature,
            max_tokens=recipe.max_completion_length,
            stop_token_ids=stop_token_ids(policy.model, policy.tokenizer),
            stop=tuple(recipe.prompt.stop),
        )
        asker = Asker(self._engine, params, decode, pool, policy.weights_sha256())
        try:
            return filtered(self._context, recipe, self._prepared, asker)
        except BaseException:
            self.close()
            raise

    def run(self) -> Outcome:
        self._resume()
        try:
            # The attempt that finished a step may have been killed before what follows it: that comes before the next.
            ended = self._base() or self._finish(self._progress.step)
            while ended is None:
                ended = self._step(self._progress.step + 1)
        except NonFiniteLogitsError as problem:
            message = f"after step {self._progress.step}: {problem} (a lower learning_rate usually helps)"
            raise UserError("nonfinite_logits", message) from problem
        return self._end(ended)

    def close(self) -> None:
        """End the engine, which may be a process or hold most of a card."""
        self._engine.close()

    def _base(self) -> Outcome | None:
        """Keep the start weights and freeze the base model's answers. No step is taken before both are complete."""
        if self._saved_step is None:
            for warning in self._prepared.warnings:
                self._event("data_warning", {"message": warning})
            self._save(self._progress.step)
        return None if self._looks.ask_base(self._hash) else self._requested()

    def _step(self, step: int) -> Outcome | None:
        result = self._steps.run(step)
        if result is None:
            return self._requested()
        self._follower.observe(step)
        self._progress.step = step
        self._progress.nonfinite = result.nonfinite_in_a_row(self._progress.nonfinite)
        return self._finish(step)

    def _finish(self, step: int) -> Outcome | None:
        """End a step: the jump where a cycle ends, the checkpoint, and what follows both."""
        begins = self._regrounder.follow(step) if self._regrounder else False
        if begins is None:
            return self._requested()
        if begins:
            # The weights are those after the jump, whatever was saved or hashed before.
            self._hashed = self._saved_step = None
            self._follower.jumped()
        due = begins or step % self._recipe.save.every == 0 or step == self._recipe.max_steps
        if due and self._saved_step != step:
            self._save(step)
        return self._after(step)

    def _after(self, step: int) -> Outcome | None:
        """What follows a finished step and its checkpoint: its look, and whatever ends the run there."""
        if self._progress.nonfinite >= self._recipe.nonfinite_limit:
            return self._nonfinite_end()
        if self._looks.missing(step) and not self._look(step):
            return self._requested()
        if damaged := self._damage_stop(step):
            return damaged
        ended = self._own_end(step)
        if ended is not None and self._looks.missing(step, final=True):
            return self._final_look(step, ended)
        return ended or self._requested()

    def _damage_stop(self, step: int) -> Outcome | None:
        if not self._looks.stop_decided():
            return None
        return Outcome("damage_stopped", f"the damage rule decided at step {step}")

    def _final_look(self, step: int, ended: Outcome) -> Outcome | None:
        """Look at the weights that a run leaves which ends between two looks; what the rule decides there holds.

        The look takes the place of the next planned one, so there are never more than the T that the rule was frozen for.
        The weights are saved first: an attempt that comes after a crash finds the end where it was.
        """
        if self._saved_step != step:
            self._save(step)
        if not self._look(step):
            return self._requested()
        return self._damage_stop(step) or ended

    def _look(self, step: int) -> bool:
        """Look, and record the work that it took to get there, all looks and decisions included."""
        if not self._looks.look(step, self._hash()):
            return False
        with self._context.db.fenced(self._context.fence) as session:
            metrics.record(session, self._context.fence, step, {"time/worked_s": self._progress.elapsed_s})
        return True

    def _own_end(self, step: int) -> Outcome | None:
        if step >= self._recipe.max_steps:
            return Outcome("succeeded", f"{self._recipe.max_steps} steps finished")
        stop = self._recipe.stop
        if stop is None:
            return None
        conditions = StopConditions(stop.max_hours, stop.target, stop.patience)
        reason = conditions.reason(elapsed_s=self._progress.elapsed_s, accuracies=self._looks.accuracies())
        return Outcome("succeeded", reason) if reason else None

    def _requested(self) -> Outcome | None:
        return _requested(self._context)

    def _nonfinite_end(self) -> Outcome:
        message = (
            f"{self._progress.nonfinite} updates in a row had a gradient that is not finite and were skipped; "
            f"the last good weights are those of step {self._progress.step} (a lower learning_rate usually helps)"
        )
        return Outcome("failed", message, error={"category": "user", "code": "nonfinite_gradients", "message": message})

    def _end(self, outcome: Outcome) -> Outcome:
        """Leave a checkpoint of the last finished step, whatever the outcome."""
        if self._saved_step != self._progress.step:
            self._save(self._progress.step)
        return outcome

    def _resume(self) -> None:
        """Go back to the last good checkpoint, or to a parent's where this run is a fork that has none of its own yet."""
        context = self._context
        row = self._newest_good()
        with context.db.fenced(context.fence) as session:
            metrics.supersede_after(session, context.fence, row.step if row else -1)
            evaluations.discard_unfinished(session, context.fence)
            kept = checkpoint_rows.list_(session, context.run_id, superseded=True)
        folders = context.settings.run_dir(context.run_id) / "checkpoints"
        checkpoints.remove_leftovers(folders, keep={Path(one.path).name for one in kept})
        for one in kept:
            if not one.has_optimizer:
                checkpoints.drop_optimizer(context.settings.home / one.path)
        if row is not None:
            folder = context.settings.home / row.path
            self._restore(folder, row.step)
            if self._regrounder and row.step > 0:
                self._regrounder.restore(row.step, checkpoints.read_trainer_state(folder)["regrounding"])
            self._saved_step = row.step
        elif self._run.parent_step is not None:
            self._fork(self._run.parent_step)
        with context.db.fenced(context.fence) as session:
            queue.runner_started(session, context.fence, resumed_from_step=self._progress.step if row else None)

    def _newest_good(self) -> Checkpoint | None:
        """Return the newest checkpoint that training can continue from; damaged ones met on the way are marked deleted."""
        context = self._context
        with context.db.read() as session:
            rows = checkpoint_rows.list_(session, context.run_id)
        for row in reversed(rows):
            if (row.step == 0 or row.has_optimizer) and self._good(row) and self._cycle_start_good(row):
                return row
        return None

    def _good(self, row: Checkpoint) -> bool:
        """Whether every file is as it was written; a damaged checkpoint is marked deleted."""
        context = self._context
        try:
            checkpoints.verify_checkpoint(context.settings.home / row.path)
        except checkpoints.DamagedCheckpointError as problem:
            with context.db.fenced(context.fence) as session:
                checkpoint_rows.mark_deleted(session, row.id)
            self._event("checkpoint_damaged", {"id": row.id, "step": row.step, "problem": str(problem)})
            return False
        return True

    def _cycle_start_good(self, row: Checkpoint) -> bool:
        """In the middle of a cycle of re-grounding, the checkpoint that the cycle began with is needed too."""
        start = row.provenance.get(CYCLE_START)
        if start is None or start == row.step:
            return True
        with self._context.db.read() as session:
            begun = checkpoint_rows.at_step(session, self._context.run_id, start)
        return begun is not None and self._good(begun)

    def _fork(self, step: int) -> None:
        """Begin with a parent's weights, moments and step; its hours and its skipped updates stay its own.

        The parent's checkpoint is the model of a fork's recipe.
        """
        if step >= self._recipe.max_steps:
            raise UserError(
                "nothing_left",
                f"the fork begins at step {step} and max_steps is {self._recipe.max_steps}: no step is left to take; "
                f"raise max_steps above {step}, or fork from an earlier step",
            )
        if step > 0 and not (self._start / checkpoints.OPTIMIZER).is_file():
            raise UserError(
                "no_optimizer_state",
                f"the parent's checkpoint of step {step} holds weights only, so training cannot continue from it; fork from a "
                "checkpoint with optimizer state, or start a new run with this one as its model",
            )
        try:
            self._restore(self._start, step)
        except ValueError as problem:
            raise UserError(
                "optimizer_differs",
                f"the parent's optimizer state does not fit optimizer {self._recipe.optimizer.name}: {problem}; keep the "
                "parent's optimizer, or start a new run with that checkpoint as its model",
            ) from problem
        self._progress = Progress(step)

    def _restore(self, folder: Path, step: int) -> None:
        """Take weights, moments and counters from a verified folder; those of step 0 are the base model's, loaded already."""
        if step > 0:
            self._policy.restore(folder)
            state = checkpoints.read_trainer_state(folder)
            self._progress = Progress(step, state["nonfinite"], state["worked_s"])
            # The version of the weights follows from the steps that made them, in every attempt.
            self._engine.update_weights(weights_version(self._recipe, step))
        self._follower.restore(folder, step)
        self._log.info("continuing from the checkpoint of step %d", step)

    def _save(self, step: int) -> None:
        context = self._context
        refuse_nonfinite_weights(self._policy.optimizer, step)
        directory = context.settings.checkpoint_dir(context.run_id, context.attempt, step)
        cycle = {"regrounding": self._regrounder.state()} if self._regrounder else {}
        needed = {CYCLE_START: self._regrounder.start} if self._regrounder else {}
        written = self._policy.save(
            directory,
            step=step,
            weights_sha256=self._hash(),
            with_optimizer=step > 0,
            state=self._progress.state() | cycle,
            beside=self._follower.save,
        )
        with context.db.fenced(context.fence) as session:
            checkpoint_rows.add(
                session,
                context.fence,
                step=step,
                path=str(directory.relative_to(context.settings.home)),
                sha256=written.weights_sha256,
                files={file.name: {"bytes": file.bytes, "sha256": file.sha256} for file in written.files},
                bytes=written.bytes,
                has_optimizer=step > 0,
                provenance={"run": context.run_id, "attempt": context.attempt, "recipe_model": self._recipe.model}
                | needed,
            )
        self._saved_step = step
        self._forget_old()
        if not self._recipe.save.optimizer:
            self._drop_optimizers()

    def _forget_old(self) -> None:
        """Apply ``save.keep``: the newest so many stay, and always step 0, the best look's and what another run names."""
        keep, context = self._recipe.save.keep, self._context
        if keep == "all":
            return
        with context.db.fenced(context.fence) as session:
            rows = checkpoint_rows.list_(session, context.run_id)
            best = checkpoint_rows.best(session, context.run_id)
            spared = {0, *checkpoint_rows.steps_in_use(session, context.run_id)} | ({best.step} if best else set())
            spared |= {self._regrounder.start} if self._regrounder and self._regrounder.start is not None else set()
            doomed = [row for row in rows[:-keep] if row.step not in spared]
            for row in doomed:
                checkpoint_rows.mark_deleted(session, row.id)
        for row in doomed:
            checkpoints.remove_checkpoint(context.settings.home / row.path)

    def _drop_optimizers(self) -> None:
        """Apply ``save.optimizer: false``: the newest checkpoint alone has optimizer state, so that the run can continue."""
        context, home = self._context, self._context.settings.home
        with context.db.fenced(context.fence) as session:
            spared = checkpoint_rows.steps_in_use(session, context.run_id)
            older = checkpoint_rows.list_(session, context.run_id)[:-1]
            doomed = [row for row in older if row.has_optimizer and row.step not in spared]
            for row in doomed:
                manifest = checkpoints.manifest_without_optimizer(home / row.path)
                checkpoint_rows.forget_optimizer(
                    session,
                    row.id,
                    file=checkpoints.OPTIMIZER,
                    manifest=manifest.name,
                    manifest_bytes=manifest.bytes,
                    manifest_sha256=manifest.sha256,
                )
        for row in doomed:
            checkpoints.drop_optimizer(home / row.path)

    def _load(self, start: Path, device: torch.device, layers: int) -> Policy:
        """Load the model of ``start``; for a fork with adapters the one that these belong to, since they come back later."""
        base = adapters.base_reference(start) if self._recipe.lora and self._run.parent_step else None
        folder = start if base is None else self._find(base)
        try:
            return load_policy(folder, self._recipe, device, checkpointed_layers=layers, base=base)
        except ModelError as problem:
            raise UserError("unusable_model", str(problem)) from problem

    def _find(self, reference: str) -> Path:
        try:
            source = find_model(self._context.db, self._context.settings, self._context.fence, reference)
            if source.sha256 is not None:
                checkpoints.verify_checkpoint(source.folder)
        except ModelError as problem:
            raise UserError("unknown_model", str(problem)) from problem
        except checkpoints.DamagedCheckpointError as problem:
            message = f"the checkpoint {source.reference} is damaged: {problem}; begin from another step"
            raise UserError("damaged_checkpoint", message) from problem
        return source.folder

    def _hash(self) -> str:
        """Hash of the current weights; computed once per step, since it reads every weight."""
        if self._hashed is None or self._hashed[0] != self._progress.step:
            self._hashed = (self._progress.step, self._policy.weights_sha256())
        return self._hashed[1]

    def _phase(self, phase: str) -> None:
        with self._context.db.fenced(self._context.fence) as session:
            runs.progress(session, self._context.fence, phase=phase, done=0, total=self._recipe.max_steps, unit="steps")

    def _event(self, kind: str, payload: dict[str, Any]) -> None:
        with self._context.db.fenced(self._context.fence) as session:
            events.append(session, self._context.run_id, kind, payload, self._context.attempt)
        self._log.info("%s: %s", kind, payload)
