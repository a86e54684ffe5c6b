"""Freezing what a train run claims before its first look, and showing what was frozen.

The document's content is ``core.prespec``'s; here the recipe's rule is built from what the recipe says about its pool.
Environment hashes are appended later by the runner, as amendments.
"""

from typing import Any

from sqlalchemy.orm import Session

from api.times import iso
from core.damage.observations import RuleError
from core.damage.rules import frozen, make_rule
from core.planning.cost import look_count
from core.prespec.canonical import canonical_bytes
from core.prespec.document import automatic_document, freeze_hash
from core.recipes import RecipeError, TrainRecipe, family_hash, recipe_hash, resolved
from core.recipes.resolution import smallest_pool
from core.store import prespecs
from core.store.database import now
from core.store.models import Prespecification, Run


def automatic(recipe: TrainRecipe, *, run_of_family: int | None, at: float) -> dict[str, Any]:
    """The automatic document of a recipe. Raises :class:`RecipeError` when its damage stop cannot work."""
    facts = {
        "recipe_hash": recipe_hash(recipe),
        "family_hash": family_hash(recipe),
        "run_of_family": run_of_family,
        "rule": frozen_rule(recipe),
        "claimed_at": iso(at),
    }
    return automatic_document(resolved(recipe), facts)


def freeze_automatic(session: Session, run: Run, recipe: TrainRecipe) -> None:
    """Freeze the automatic document of a run that has just been created and tie the two together."""
    if recipe.damage_stop is not None and frozen_rule(recipe) is None:
        return  # the pool's size is not known before its file is read; the runner freezes before its first look
    document = automatic(recipe, run_of_family=run.run_of_family, at=now(session))
    row = prespecs.freeze(
        session,
        document=document,
        canonical=canonical_bytes(document).decode("utf-8"),
        hash=freeze_hash(document),
        automatic=True,
        exploratory=True,
        run_id=run.id,
    )
    run.prespecification_id = row.id


def frozen_rule(recipe: TrainRecipe) -> dict[str, Any] | None:
    """The rule of the recipe's damage stop in its frozen form; None without one, or while the pool's size is unknown."""
    stop, looks = recipe.damage_stop, recipe.looks
    if stop is None or looks is None:
        return None
    pool = smallest_pool(recipe, looks)
    if pool is None:
        return None
    spec = stop.model_dump() | {"m": looks.m, "base_runs": looks.base_runs, "suites": len(looks.suites)}
    if stop.rule != "threshold":
        spec = {name: value for name, value in spec.items() if name not in {"points", "consecutive"}}
    try:
        return frozen(make_rule(spec, pool, look_count(recipe)))
    except RuleError as exc:
        raise RecipeError(exc.param, exc.message, exc.hint or "see damage_stop in the recipe's documentation") from None


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
