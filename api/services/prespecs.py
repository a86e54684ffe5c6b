"""Freezing what a train run claims before its first look, and showing what was frozen.

The document and the rule in it are made by ``core.train.prespecify``, as the runner would make them; here it is decided
when that happens. Environment hashes are appended later by the runner, as amendments.
"""

from typing import Any

from sqlalchemy.orm import Session

from api.times import iso
from core.recipes import TrainRecipe
from core.store.models import Prespecification, Run
from core.train.prespecify import document_of, freeze_automatic, known_pool


def automatic(recipe: TrainRecipe, *, run_of_family: int | None, at: float) -> dict[str, Any] | None:
    """The document a run of this recipe would get; None while only reading the pool's file can tell its size.

    Raises ``RecipeError`` when the damage stop could never work.
    """
    pool = known_pool(recipe)
    return None if pool is None else document_of(recipe, n_pool=pool, run_of_family=run_of_family, at=at)


def freeze_for(session: Session, run: Run, recipe: TrainRecipe) -> None:
    """Freeze the automatic document of a run that has just been created.

    Where the pool's size is not known before its file is read, the runner freezes before its first look.
    """
    pool = known_pool(recipe)
    if pool is not None:
        freeze_automatic(session, run, recipe, pool)


def document(row: Prespecification) -> dict[str, Any]:
    """A prespecification as the API shows it."""
    return {
        "id": row.id,
        "run_id": row.run_id,
        "hash": row.hash,
        "automatic": row.automatic,
        "exploratory": row.exploratory,
        "clock": row.clock,
        "frozen_at": iso(row.frozen_at),
        "document": row.document,
        "amendments": [entry | {"at": iso(entry["at"])} if "at" in entry else entry for entry in row.amendments],
    }
