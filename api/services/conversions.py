"""An export as a run: the analysis recipe that a wish for a checkpoint in another form means."""

from typing import Any

from sqlalchemy.orm import Session

from api.errors import Conflict
from api.schemas.conversions import ExportWish
from api.services import checkpoints as service
from api.services import submission
from core.recipes import Problem, RecipeError
from core.settings import Settings
from core.store import checkpoints
from core.store.models import Checkpoint
from core.store.provenance import FORM

_PLACE = "compute.0.export."


def prepare(session: Session, checkpoint_id: str, wish: ExportWish, settings: Settings) -> submission.Submission:
    """Return what to store; raises NotFound, Gone, :class:`Conflict`, or :class:`RecipeError` naming the wish's own fields."""
    row = service.present(session, checkpoint_id)
    _refuse_unusable(session, row)
    try:
        wanted = submission.read(session, _recipe(row, wish), settings)
    except RecipeError as problem:
        own = [Problem(one.param.removeprefix(_PLACE), one.message, one.hint) for one in problem.problems]
        raise RecipeError.of(own) from problem
    submission.refuse_missing(wanted)
    return wanted


def _refuse_unusable(session: Session, row: Checkpoint) -> None:
    current = checkpoints.at_step(session, row.run_id, row.step)
    if current is None or current.id != row.id:
        raise Conflict(
            f"checkpoint {row.id} is not the one that run {row.run_id} goes by for step {row.step}",
            code="superseded",
            hint="export the current checkpoint of that step",
        )
    if (form := row.provenance.get(FORM, "hf")) != "hf":
        raise Conflict(
            f"checkpoint {row.id} is an export as {form} already",
            code="not_a_model",
            hint="export the checkpoint that it was made of",
        )


def _recipe(row: Checkpoint, wish: ExportWish) -> dict[str, Any]:
    block = {"step": row.step, **wish.model_dump(exclude_none=True)}
    return {
        "kind": "analysis",
        "name": f"export {wish.format} of run:{row.run_id}/step-{row.step}",
        "run": f"run:{row.run_id}",
        "compute": [{"name": "export", "export": block}],
    }
