"""From the bytes of a recipe to an accepted run: what must hold before a run exists, and what is stored with it.

The recipe package says whether a recipe makes sense; here it is compared with what this service has: models, the runs it
refers to, and what this release can execute. Sending doorbells and committing are the endpoint's work.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy.orm import Session

from api.services import prespecs, regrading
from core.recipes import (
    AnalysisRecipe,
    EvalRecipe,
    Problem,
    RecipeError,
    TrainRecipe,
    family_hash,
    features_missing,
    local_models,
    parse_recipe,
    recipe_hash,
    resolved,
)
from core.recipes.jsontext import read_object
from core.settings import Settings
from core.store import checkpoints, runs
from core.store.errors import Ambiguous, NotFound
from core.store.models import Run
from core.store.states import FINAL, RunState
from core.tasks.reward_files import pinned

AnyRecipe = TrainRecipe | EvalRecipe | AnalysisRecipe


@dataclass(frozen=True)
class Submission:
    """A recipe that can be stored: parsed, with every reference to a run written with its full id."""

    recipe: AnyRecipe
    submitted: dict[str, Any]
    resolved: dict[str, Any]
    recipe_hash: str
    family_hash: str
    missing: tuple[Problem, ...]


@dataclass(frozen=True)
class Lineage:
    """Where a fork comes from."""

    parent_id: str
    parent_step: int | None
    recipe_diff: dict[str, Any]
    exploratory: bool


def read(session: Session, raw: bytes | Mapping[str, Any], settings: Settings) -> Submission:
    """Parse and check a recipe. Raises :class:`RecipeError` with every problem that can be named at once."""
    submitted = read_object(raw)
    known = local_models(settings.models_dir)
    parse_recipe(submitted, known_models=known)
    recipe = _with_reward_files(parse_recipe(_with_full_ids(session, submitted), known_models=known), settings)
    if isinstance(recipe, EvalRecipe) and recipe.regrade is not None:
        regrading.check(session, recipe.regrade)
    return Submission(
        recipe=recipe,
        submitted=submitted,
        resolved=resolved(recipe),
        recipe_hash=recipe_hash(recipe),
        family_hash=family_hash(recipe),
        missing=tuple(features_missing(recipe)),
    )


def refuse_missing(submission: Submission) -> None:
    """Refuse what this release cannot execute, by name; a dry run reports it instead. Raises :class:`RecipeError`."""
    if submission.missing:
        raise RecipeError.of(submission.missing)


def refuse_unprobeable(submission: Submission) -> None:
    """A probe measures rollouts, so it needs a train recipe that has some. Raises :class:`RecipeError`."""
    recipe = submission.recipe
    if not isinstance(recipe, TrainRecipe):
        raise RecipeError("kind", f"a probe measures a train recipe, not one of kind {recipe.kind}", "post it as it is")
    if recipe.algorithm.supervised:
        message = f"a probe measures rollouts, and {recipe.algorithm.name} has none"
        raise RecipeError("algorithm.name", message, "?dry_run=true gives its plan")


def store(session: Session, submission: Submission, lineage: Lineage | None = None, *, probe: bool = False) -> Run:
    """Create the run, with its doorbell, and freeze its prespecification before any result can exist.

    A ``probe`` has no looks, so nothing is prespecified for it.
    """
    recipe = submission.recipe
    run = runs.create(
        session,
        recipe=submission.resolved,
        submitted=submission.submitted,
        recipe_hash=submission.recipe_hash,
        family_hash=submission.family_hash,
        model=recipe.run if isinstance(recipe, AnalysisRecipe) else recipe.model,
        name=recipe.name or recipe.kind,
        kind=recipe.kind,
        priority=recipe.priority,
        tags=recipe.tags,
        after=recipe.after,
        max_attempts=recipe.max_attempts,
        parent_id=lineage.parent_id if lineage else None,
        parent_step=lineage.parent_step if lineage else None,
        recipe_diff=lineage.recipe_diff if lineage else None,
        exploratory=lineage.exploratory if lineage else False,
        probe=probe,
    )
    if isinstance(recipe, TrainRecipe) and not probe:
        prespecs.freeze_for(session, run, recipe)
    return run


def _with_full_ids(session: Session, submitted: dict[str, Any]) -> dict[str, Any]:
    """A copy in which every run is named by its full id, so that a prefix cannot come to mean another run later.

    What ``best`` and ``last`` mean is written down as well where it cannot change any more: the run is final.
    """
    changed = copy.deepcopy(submitted)
    problems: list[Problem] = []
    for name in ("model", "run"):
        if isinstance(changed.get(name), str):
            changed[name] = _full_ref(session, changed[name], name, problems)
    line = changed.get("extrapolation")
    if isinstance(line, dict):
        for name in ("a", "b"):
            if isinstance(line.get(name), str):
                line[name] = _full_ref(session, line[name], f"extrapolation.{name}", problems)
    if isinstance(changed.get("against"), list):
        changed["against"] = [
            _full_ref(session, ref, f"against.{index}", problems) for index, ref in enumerate(changed["against"])
        ]
    if isinstance(changed.get("after"), list):
        changed["after"] = [
            _full_id(session, str(name).removeprefix("run:"), f"after.{index}", problems)
            for index, name in enumerate(changed["after"])
        ]
    if problems:
        raise RecipeError.of(problems)
    return _settled(session, changed)


def _with_reward_files(recipe: AnyRecipe, settings: Settings) -> AnyRecipe:
    """The recipe with the hashes of its reward files written down, so that what was accepted is what will be run."""
    if not isinstance(recipe, TrainRecipe):
        return recipe
    terms, problems = pinned(recipe.rewards, settings.rewards_dir)
    if problems:
        raise RecipeError.of(problems)
    return recipe.model_copy(update={"rewards": terms})


def _settled(session: Session, recipe: dict[str, Any]) -> dict[str, Any]:
    """Replace ``best`` and ``last`` of final runs by their steps.

    A name stays as it is where that step is named already, as when the best checkpoint is compared with the last and is the
    last: a recipe names no model twice, and its first attempt pins both.
    """
    line = recipe.get("extrapolation") or {}
    wanted = (recipe.get("model"), line.get("a"), line.get("b"), *recipe.get("against", ()))
    names = list(dict.fromkeys(name for name in wanted if isinstance(name, str)))
    steps: dict[str, str] = {}
    for name in names:
        step = _step_of(session, name)
        steps[name] = name if step in {*names, *steps.values()} else step
    settled = recipe | {
        field: steps[recipe[field]] if field == "model" else [steps[name] for name in recipe[field]]
        for field in ("model", "against")
        if field in recipe
    }
    if line:
        settled["extrapolation"] = line | {side: steps[line[side]] for side in ("a", "b")}
    return settled


def _step_of(session: Session, ref: str) -> str:
    """``run:ID/best`` or ``last`` of a final run with its step; anything else as it is (the first attempt pins it)."""
    owner, _, which = ref.partition("/")
    run_id = owner.removeprefix("run:")
    if not ref.startswith("run:") or which not in {"best", "last"}:
        return ref
    if RunState(runs.get(session, run_id).state) not in FINAL:
        return ref
    row = checkpoints.best(session, run_id) if which == "best" else checkpoints.latest(session, run_id)
    return ref if row is None else f"{owner}/step-{row.step}"


def _full_ref(session: Session, ref: str, param: str, problems: list[Problem]) -> str:
    if not ref.startswith("run:"):
        return ref
    prefix, slash, which = ref.removeprefix("run:").partition("/")
    before = len(problems)
    run_id = _full_id(session, prefix, param, problems)
    if len(problems) == before:
        _check_step(session, run_id, which, param, problems)
    return f"run:{run_id}{slash}{which}"


def _full_id(session: Session, prefix: str, param: str, problems: list[Problem]) -> str:
    try:
        return runs.get(session, prefix).id
    except (NotFound, Ambiguous) as exc:
        problems.append(Problem(param, str(exc), "GET /runs lists the runs"))
        return prefix


def _check_step(session: Session, run_id: str, which: str, param: str, problems: list[Problem]) -> None:
    """A named step must have a checkpoint, unless the run is still at work and may get there."""
    if not which.startswith("step-"):
        return
    step = int(which.removeprefix("step-"))
    run = runs.get(session, run_id)
    if checkpoints.at_step(session, run_id, step) is None and not _may_reach(run, step):
        last = run.recipe.get("max_steps", 0)
        never = f" and ends at step {last}" if 0 < last < step else ""
        message = f"run {run_id} has no checkpoint at step {step}{never}"
        problems.append(Problem(param, message, f"GET /runs/{run_id}/checkpoints lists them"))


def _may_reach(run: Run, step: int) -> bool:
    """Whether a run at work is before this step and its recipe leads there; only train runs take steps."""
    return run.finished_at is None and (run.step or 0) < step <= run.recipe.get("max_steps", 0)
