"""Recipes are light: the api, the worker and the command line import them without waiting."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
HEAVY = (
    "torch",
    "transformers",
    "numpy",
    "scipy",
    "sympy",
    "sqlalchemy",
    "celery",
    "fastapi",
    "reasoning_gym",
    "datasets",
)


def test_importing_and_using_recipes_and_plans_loads_nothing_heavy() -> None:
    code = (
        "import sys, core.recipes, core.planning\n"
        "recipe = core.recipes.parse_recipe(open('recipes/demo-cpu.json').read())\n"
        "core.recipes.recipe_hash(recipe); core.recipes.features_missing(recipe)\n"
        "core.planning.plan(recipe, core.planning.Card(6, 'host'))\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
