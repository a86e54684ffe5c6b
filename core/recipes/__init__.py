"""Recipes: the JSON that describes one job, read strictly, filled in, canonicalised and hashed.

What lives here: the pydantic models of the three kinds, the reader that names every problem of a recipe, the catalogue of
known models, data and algorithms, hashes, and the list of valid things that this release cannot run yet. What may not: any
import heavier than pydantic and rfc8785, and any look at the network, the database or a model's weights.
"""

from core.recipes.analysis import AnalysisRecipe
from core.recipes.canonical import canonical_bytes, family_hash, recipe_hash, resolved
from core.recipes.errors import Problem, RecipeError
from core.recipes.evaluation import EvalRecipe
from core.recipes.features import features_missing
from core.recipes.model_refs import check_model, local_models
from core.recipes.parse import Recipe, load_recipe, parse_recipe
from core.recipes.train import TrainRecipe

__all__ = [
    "AnalysisRecipe",
    "EvalRecipe",
    "Problem",
    "Recipe",
    "RecipeError",
    "TrainRecipe",
    "canonical_bytes",
    "check_model",
    "family_hash",
    "features_missing",
    "load_recipe",
    "local_models",
    "parse_recipe",
    "recipe_hash",
    "resolved",
]
