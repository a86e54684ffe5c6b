"""What a train run claims before its first look: the frozen rule, the key of its draws, and the hashes known only here.

The api freezes the document when a recipe is posted; this module reads it, freezes one where the pool's size could not be
known before its items were read, and appends the environment's hashes before the base look. It imports no torch.
"""

import hashlib
from dataclasses import dataclass
from typing import Any

from sqlalchemy.orm import Session

from core.damage.observations import RuleError
from core.damage.rules import Rule, frozen, make_rule, rule_from_frozen
from core.jobs import RunContext, UserError
from core.prespec.canonical import canonical_bytes, decimals_as_strings
from core.prespec.chain import claimed_text
from core.prespec.document import automatic_document, draw_key, freeze_hash
from core.prespec.environment import ENVIRONMENT, HELDOUT, TRAIN, changed_items, environment_of
from core.prespec.merkle import items_root
from core.recipes import RecipeError, TrainRecipe, family_hash, recipe_hash, resolved
from core.recipes.resolution import stop_pool
from core.recipes.train import look_steps
from core.store import prespecs, runs
from core.store.database import now
from core.store.models import Prespecification, Run
from core.tasks.items import ItemSet

THRESHOLD = "threshold"


@dataclass(frozen=True)
class Frozen:
    """The frozen rule (None without a damage stop) and the key from which every look's draw derives."""

    rule: Rule | None
    key: bytes


def steps_of_looks(recipe: TrainRecipe, begins_at: int = 0) -> list[int]:
    """Steps with a look: every ``looks.every`` and the last, a fork's only after the step it begins at. T is their number."""
    steps = look_steps(recipe.max_steps, recipe.looks.every) if recipe.looks else []
    return [step for step in steps if step > begins_at]


def rule_of(recipe: TrainRecipe, n_pool: int, begins_at: int = 0) -> Rule | None:
    """Build the rule that the recipe's damage stop asks for over a pool of ``n_pool`` items.

    Raises :class:`RecipeError` naming the field when the rule could never work.
    """
    if recipe.damage_stop is None or recipe.looks is None:
        return None
    spec = recipe.damage_stop.model_dump() | {"m": recipe.looks.m, "base_runs": recipe.looks.base_runs}
    if recipe.damage_stop.rule != THRESHOLD:
        spec = {name: value for name, value in spec.items() if name not in {"points", "consecutive"}}
    try:
        return make_rule(spec, n_pool, len(steps_of_looks(recipe, begins_at)))
    except RuleError as problem:
        raise RecipeError(problem.param, problem.message, problem.hint) from problem


def known_pool(recipe: TrainRecipe) -> int | None:
    """Items of the suite that carries the damage stop, None where only reading its file tells."""
    return stop_pool(recipe, recipe.looks) if recipe.looks else 0


def document_of(
    recipe: TrainRecipe, *, n_pool: int, run_of_family: int | None, at: float, begins_at: int = 0
) -> dict[str, Any]:
    """Return the automatic document of a recipe; raises :class:`RecipeError` when its damage stop could never work."""
    rule = rule_of(recipe, n_pool, begins_at)
    facts = {
        "recipe_hash": recipe_hash(recipe),
        "family_hash": family_hash(recipe),
        "run_of_family": run_of_family,
        "rule": frozen(rule) if rule else None,
        "claimed_at": claimed_text(at),
    }
    return automatic_document(resolved(recipe), facts)


def freeze_automatic(session: Session, run: Run, recipe: TrainRecipe, n_pool: int) -> Prespecification:
    """Freeze the automatic document of ``run`` and tie the two together. The time is the database's."""
    document = document_of(
        recipe, n_pool=n_pool, run_of_family=run.run_of_family, at=now(session), begins_at=run.parent_step or 0
    )
    return prespecs.freeze(
        session,
        document=document,
        canonical=canonical_bytes(document).decode(),
        hash=freeze_hash(document),
        automatic=True,
        exploratory=True,
        run_id=run.id,
    )


def load_or_freeze(
    context: RunContext, recipe: TrainRecipe, suites: dict[str, ItemSet], *, train: ItemSet, heldout: ItemSet
) -> Frozen:
    """Return what was frozen for the run, freezing it now where the api could not, and amend it once with data hashes.

    Raises :class:`UserError` when the pool has another size than the frozen rule, or when items are no longer those that an
    earlier attempt found.
    """
    pool = len(next(iter(suites.values()))) if suites else 0
    with context.db.fenced(context.fence) as session:
        run = runs.get(session, context.run_id)
        if run.prespecification_id is None:
            row = freeze_automatic(session, run, recipe, pool)
        else:
            row = prespecs.get(session, run.prespecification_id)
        key = draw_key(row.hash)
        stated = row.document["analysis"]["rule"]
        rule = rule_from_frozen(stated) if isinstance(stated, dict) else None
        if rule is not None and rule.n_pool != pool:
            raise UserError(
                "data_changed",
                f"the damage stop was frozen for a pool of {rule.n_pool} items, and suite {next(iter(suites))} has {pool} now; "
                "put the data back as it was, or post the recipe anew",
            )
        environment = _environment(context, suites, train=train, heldout=heldout, key=key)
        found = environment_of(row.amendments)
        if found is None:
            prespecs.amend(session, row.id, environment)
        elif changed := changed_items(found, environment):
            raise UserError(
                "data_changed",
                f"the items of {', '.join(changed)} are not those that this run began with, so what its attempts find could "
                "not be put together; put the data back as it was, or post the recipe anew",
            )
    return Frozen(rule, key)


def _environment(
    context: RunContext, suites: dict[str, ItemSet], *, train: ItemSet, heldout: ItemSet, key: bytes
) -> dict[str, Any]:
    """What was not known when the recipe was posted. The salts of the Merkle leaves derive from the draw key."""
    secret = hashlib.sha256(b"driftline/merkle-salt/1\n" + key).digest()
    payload: dict[str, Any] = decimals_as_strings(
        {
            "kind": ENVIRONMENT,
            "device": dict(context.device),
            "data": {
                TRAIN: {"items": len(train), "sha256": train.sha256},
                HELDOUT: {"items": len(heldout), "sha256": heldout.sha256},
            },
            "suites": {
                name: {
                    "items": len(items),
                    "sha256": items.sha256,
                    "merkle_root": items_root([item.as_dict() for item in items], secret),
                    "verifier": items.verifier,
                }
                for name, items in suites.items()
            },
        }
    )
    return payload
