"""Canonical bytes and hashes of recipes.

The resolved recipe (every default spelt out) is serialised by RFC 8785 and hashed with SHA-256 under a domain tag, so the hash
does not depend on key order, white space, number spelling, shorthands or defaults.
"""

import hashlib
from typing import Any

import rfc8785

from core.recipes.analysis import AnalysisRecipe
from core.recipes.evaluation import EvalRecipe
from core.recipes.train import TrainRecipe

RECIPE_DOMAIN = b"driftline/recipe/1\n"
FAMILY_DOMAIN = b"driftline/recipe-family/1\n"
NOT_FAMILY = ("seed", "name", "tags", "priority")


def resolved(recipe: TrainRecipe | EvalRecipe | AnalysisRecipe) -> dict[str, Any]:
    """The recipe as plain JSON values with every default filled in; parsing it again gives an equal recipe."""
    return recipe.model_dump(mode="json")


def canonical_bytes(obj: Any) -> bytes:
    """RFC 8785 serialisation of JSON values. Raises rfc8785's errors on values that JSON cannot hold exactly."""
    return rfc8785.dumps(obj)


def recipe_hash(recipe: TrainRecipe | EvalRecipe | AnalysisRecipe) -> str:
    """SHA-256 (hex) of the resolved recipe."""
    return hashlib.sha256(RECIPE_DOMAIN + canonical_bytes(resolved(recipe))).hexdigest()


def family_hash(recipe: TrainRecipe | EvalRecipe | AnalysisRecipe) -> str:
    """SHA-256 (hex) of what repeated runs of one experiment share: all but seed, name, tags and priority."""
    shared = {key: value for key, value in resolved(recipe).items() if key not in NOT_FAMILY}
    return hashlib.sha256(FAMILY_DOMAIN + canonical_bytes(shared)).hexdigest()
