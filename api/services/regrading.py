"""From an evaluation to the recipe of a run that grades its stored answers again. The api itself grades nothing."""

from typing import Any

from sqlalchemy.orm import Session

from core.recipes import Problem, RecipeError
from core.recipes.model_refs import is_run_ref
from core.recipes.sources import HOLDOUT
from core.store import evaluations, runs
from core.store.errors import NotFound, RecordsDeleted
from core.store.models import Evaluation


def recipe_of(session: Session, row: Evaluation) -> dict[str, Any]:
    """An eval recipe that grades ``row`` again, on the kind of device that asked it.

    It names the model that the evaluated weights come from at first, so that a deleted checkpoint is no obstacle: nothing is
    loaded. Raises :class:`RecipeError` for an evaluation that cannot be graded again.
    """
    check(session, row.id)
    asked = runs.get(session, row.run_id, deleted=True).recipe
    return {
        "kind": "eval",
        "name": f"regrade {row.suite} of {row.run_id}",
        "model": _first_model(session, asked["model"]),
        "suites": [{"suite": row.suite}],
        "regrade": row.id,
        "max_prompt_length": 1,
        "max_completion_length": 1,
        "batch_size": 1,
        "device": asked["device"],
    }


def check(session: Session, evaluation_id: str) -> None:
    """Refuse an evaluation that is not there, not finished, or whose items no recipe names. Raises :class:`RecipeError`."""
    try:
        row = evaluations.with_records(session, evaluation_id)
    except (NotFound, RecordsDeleted) as problem:
        raise _refused(str(problem), "GET /runs/{id}/evals lists a run's evaluations") from None
    if row.status != "finished":
        raise _refused(f"evaluation {row.id} is not finished", "wait until it is; GET /evals/{id} tells its status")
    recipe = runs.get(session, row.run_id, deleted=True).recipe
    suites = recipe.get("suites") or (recipe.get("looks") or {}).get("suites", [])
    names = [one["suite"] if isinstance(one, dict) else one for one in suites]
    if row.suite not in (HOLDOUT, *names):
        raise _refused(
            f"evaluation {row.id} asked of {row.suite}, which is no suite of its run's recipe",
            "looks, base evaluations and evaluation runs can be graded again",
        )


def _first_model(session: Session, model: str) -> str:
    while is_run_ref(model):
        model = runs.get(session, model.removeprefix("run:").partition("/")[0], deleted=True).recipe["model"]
    return model


def _refused(message: str, hint: str) -> RecipeError:
    return RecipeError.of([Problem("regrade", message, hint)])
