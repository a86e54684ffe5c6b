"""A child of a run: which checkpoint it begins from, what its recipe becomes, and how it is labelled."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy.orm import Session

from api.errors import Conflict, InvalidRequest
from api.schemas.runs import ForkFrom
from api.services import plans, submission, uses
from api.services.merging import merge_patch, recipe_diff
from api.services.submission import Lineage, Submission
from core.recipes import Problem, RecipeError
from core.settings import Settings
from core.store import checkpoints
from core.store.models import Run
from core.store.states import RunState


@dataclass(frozen=True)
class Fork:
    """A child that can be stored."""

    submission: Submission
    lineage: Lineage


def prepare(session: Session, parent: Run, wish: ForkFrom, settings: Settings) -> Fork:
    """Merge the overrides and choose the checkpoint. Raises an API error or a ``RecipeError``.

    From a checkpoint, the child's model is that checkpoint, so ``model`` cannot be overridden, and neither can what decides
    which items are held out, nor the optimizer whose state the checkpoint holds. ``after`` is not inherited, since the
    parent's conditions were met or have failed already. What is wrong with a field that the overrides set is told of
    ``overrides.FIELD``.
    """
    step = _step(session, parent, wish)
    if step is not None and "model" in wish.overrides:
        hint = 'leave model out, or fork with "from_step": "scratch"'
        raise InvalidRequest(
            "a fork from a checkpoint has that checkpoint as its model", param="overrides.model", hint=hint
        )
    if "kind" in wish.overrides:
        raise InvalidRequest("a fork has its parent's kind", param="overrides.kind", hint="leave kind out")
    inherited = {name: value for name, value in parent.submitted.items() if name != "after"}
    merged = merge_patch(inherited, wish.overrides)
    if step is not None:
        merged["model"] = f"run:{parent.id}/step-{step}"
    child = _acceptable(session, merged, wish.overrides, settings)
    if step is not None:
        _refuse_other_items(parent, child)
        _refuse_other_optimizer(parent, child, step)
        _refuse_nothing_left(child, step)
    lineage = Lineage(
        parent_id=parent.id,
        parent_step=step,
        recipe_diff=recipe_diff(parent.recipe, child.resolved),
        # What goes on after a damage stop was chosen with the result known, and so is whatever descends from it.
        exploratory=step is not None and (parent.state == RunState.DAMAGE_STOPPED or parent.exploratory),
    )
    return Fork(child, lineage)


def _acceptable(
    session: Session, merged: dict[str, Any], overrides: Mapping[str, Any], settings: Settings
) -> Submission:
    """The child's recipe, which this release can execute on the device it asks for. Raises ``RecipeError``."""
    try:
        child = submission.read(session, merged, settings)
        submission.refuse_missing(child)
        plans.refuse_unfit(session, child, settings)
    except RecipeError as exc:
        raise RecipeError.of([_in_overrides(problem, overrides) for problem in exc.problems]) from None
    return child


def _in_overrides(problem: Problem, overrides: Mapping[str, Any]) -> Problem:
    """The problem with the place where the client wrote the field, if the overrides set it or something in it."""
    found: Any = overrides
    for part in problem.param.split("."):
        if not isinstance(found, Mapping):
            break
        if part not in found:
            return problem
        found = found[part]
    return replace(problem, param=f"overrides.{problem.param}")


def _refuse_other_optimizer(parent: Run, child: Submission, step: int) -> None:
    """The state of one optimizer means nothing to another; a checkpoint of step 0 holds none that is taken over."""
    before, after = (_optimizer_kind(recipe["optimizer"]) for recipe in (parent.recipe, child.resolved))
    if step > 0 and before != after:
        raise InvalidRequest(
            f"the checkpoint of step {step} holds the state of {before}, from which {after} cannot continue",
            param="overrides.optimizer",
            hint=f'leave optimizer out, or post a recipe with "model": "run:{parent.id}/step-{step}"',
        )


def _optimizer_kind(optimizer: dict[str, Any]) -> str:
    """Optimizers of one kind keep the same state: sgd keeps some only with momentum."""
    return f"{optimizer['name']} with momentum" if optimizer["momentum"] else str(optimizer["name"])


def _refuse_other_items(parent: Run, child: Submission) -> None:
    """The seed and the data decide which items are held out: others would be items that the parent has trained on."""
    before, after = parent.recipe, child.resolved
    changed = [f"data.{name}" for name in after["data"] if after["data"][name] != before["data"].get(name)]
    if after["seed"] != before["seed"]:
        changed.append("seed")
    if changed:
        raise InvalidRequest(
            f"a fork from a checkpoint keeps its parent's {changed[0]}: with another one it would hold out items that the "
            "checkpoint was trained on",
            param=f"overrides.{changed[0]}",
            hint=f'leave {changed[0]} out, or fork with "from_step": "scratch"',
        )


def _refuse_nothing_left(child: Submission, step: int) -> None:
    steps = child.resolved["max_steps"]
    if step >= steps:
        raise InvalidRequest(
            f"the fork begins at step {step} and max_steps is {steps}: no step is left to take",
            param="overrides.max_steps",
            hint=f"set overrides.max_steps above {step}, or name an earlier from_step",
        )


def _step(session: Session, parent: Run, wish: ForkFrom) -> int | None:
    if parent.kind != "train":
        if wish.from_step not in {None, "scratch"}:
            message = f"a run of kind {parent.kind} has no checkpoints to begin from"
            raise InvalidRequest(message, param="from_step", hint='use "scratch" or leave it out')
        return None
    match wish.from_step:
        case "scratch":
            return None
        case "best":
            found = checkpoints.best(session, parent.id)
        case int() as step:
            found = checkpoints.at_step(session, parent.id, step)
        case _:
            found = checkpoints.latest(session, parent.id)
    if found is None:
        which = "that step" if isinstance(wish.from_step, int) else f"its {wish.from_step or 'last'} step"
        hint = f'GET /runs/{parent.id}/checkpoints lists those there are; "scratch" needs none'
        raise Conflict(
            f"run {parent.id} has no checkpoint of {which}", param="from_step", code="no_checkpoint", hint=hint
        )
    if found.step > 0 and not found.has_optimizer:
        raise Conflict(
            f"the checkpoint of step {found.step} holds weights only (save.optimizer is false), so training cannot continue "
            "from it",
            param="from_step",
            code="no_optimizer_state",
            hint=f'fork from the last step, or post a recipe with "model": "run:{parent.id}/step-{found.step}"',
        )
    return found.step


def refuse_while_needed(session: Session, run: Run) -> None:
    """Refuse to delete a run while another starts from its checkpoints or waits for them. Raises :class:`Conflict`."""
    uses.refuse_used_run(session, run)
