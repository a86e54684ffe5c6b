"""From JSON to a valid, filled-in recipe, or to every problem it has.

Order: strict JSON, pydantic per field, then the checks between fields. When fields are wrong, the checks still run on the
parts that are right, so a client sees all problems at once.
"""

import copy
from collections.abc import Collection, Mapping
from typing import Annotated, Any

from pydantic import Field, ValidationError

from core.recipes.analysis import AnalysisRecipe
from core.recipes.checks import Finding, findings
from core.recipes.errors import Problem, RecipeError, allowed, did_you_mean
from core.recipes.evaluation import EvalRecipe
from core.recipes.jsontext import read_object
from core.recipes.model_refs import KNOWN_MODELS
from core.recipes.problems import Location, cut_to_written, problems_of, written_path
from core.recipes.resolution import fill_analysis, fill_eval, fill_train
from core.recipes.train import TrainRecipe

Recipe = Annotated[TrainRecipe | EvalRecipe | AnalysisRecipe, Field(discriminator="kind")]
AnyRecipe = TrainRecipe | EvalRecipe | AnalysisRecipe

KINDS: dict[str, type[TrainRecipe] | type[EvalRecipe] | type[AnalysisRecipe]] = {
    "train": TrainRecipe,
    "eval": EvalRecipe,
    "analysis": AnalysisRecipe,
}

# Values that let a recipe with missing or wrong required fields be checked further; findings about them are dropped.
_PLACEHOLDERS: dict[str, Any] = {
    "model": "smollm2-135m",
    "data": {"dataset": "gsm8k"},
    "max_steps": 1,
    "prompts_per_step": 1,
    "num_generations": 2,
    "max_completion_length": 1,
    "suites": ["gsm8k"],
    "run": "run:0000",
    "compute": ["weight_linearity"],
}


def parse_recipe(raw: str | bytes | Mapping[str, Any], *, known_models: Collection[str] | None = ()) -> AnyRecipe:
    """Read a recipe.

    ``known_models`` names the operator's model folders (`local_models`), which are accepted beside the catalogue; None accepts
    any well-formed name. Raises `RecipeError` with every problem in ``.problems``.
    """
    obj = read_object(raw)
    cls = _kind(obj)
    context = {KNOWN_MODELS: known_models}
    try:
        recipe = cls.model_validate(obj, context=context)
    except ValidationError as error:
        problems = problems_of(error, obj, cls)
        raise RecipeError.of(problems + _further(error, obj, cls, context)) from None
    found = [_written(finding.problem, obj) for finding in findings(recipe)]
    if found:
        raise RecipeError.of(found)
    return _filled(recipe)


def load_recipe(stored: str | bytes | Mapping[str, Any]) -> AnyRecipe:
    """Read a recipe that this service accepted before: its model names are not looked up again."""
    return parse_recipe(stored, known_models=None)


def _kind(obj: dict[str, Any]) -> type[TrainRecipe] | type[EvalRecipe] | type[AnalysisRecipe]:
    kind = obj.get("kind")
    if isinstance(kind, str) and kind in KINDS:
        return KINDS[kind]
    message = "kind is missing" if "kind" not in obj else f"the kind {kind!r} is not known"
    near = did_you_mean(kind, KINDS) if isinstance(kind, str) else ""
    raise RecipeError("kind", message, f"{near}allowed: {allowed(KINDS)}")


def _filled(recipe: AnyRecipe) -> AnyRecipe:
    match recipe:
        case TrainRecipe():
            return fill_train(recipe)
        case EvalRecipe():
            return fill_eval(recipe)
        case AnalysisRecipe():
            return fill_analysis(recipe)


def _written(problem: Problem, obj: dict[str, Any]) -> Problem:
    """The problem with its place cut to what the client wrote (``looks`` for ``looks.every`` after ``"looks": 10``)."""
    return Problem(cut_to_written(obj, problem.param), problem.message, problem.hint)


def _further(error: ValidationError, obj: dict[str, Any], cls: type[Any], context: dict[str, Any]) -> list[Problem]:
    """Problems between the fields that are right: wrong ones are taken out or replaced, and findings about them dropped."""
    mended = copy.deepcopy(obj)
    touched: set[str] = set()
    for _ in range(10):
        for item in error.errors(include_url=False, include_input=False, include_context=False):
            if item["type"] != "default_factory_not_called":
                touched.add(_mend(mended, item["loc"], missing=item["type"] == "missing"))
        try:
            recipe = cls.model_validate(mended, context=context)
        except ValidationError as again:
            error = again
            continue
        return [_written(f.problem, obj) for f in findings(recipe) if not _concerns(f, touched)]
    return []


def _mend(obj: dict[str, Any], loc: Location, *, missing: bool) -> str:
    """Remove the wrong field at ``loc`` from ``obj`` (its block, when something in it is missing); return its dotted place."""
    path = list(written_path(obj, loc))
    if missing and len(path) > 1:
        path = path[:-1]
    parent: Any = obj
    for depth, part in enumerate(path[:-1], start=1):
        if isinstance(parent[part], list):
            path = path[:depth]  # one wrong element: the whole list is taken out
            break
        parent = parent[part]
    parent.pop(path[-1], None)
    if len(path) == 1 and path[0] in _PLACEHOLDERS:
        obj[path[0]] = copy.deepcopy(_PLACEHOLDERS[path[0]])
    return ".".join(path)


def _concerns(finding: Finding, touched: set[str]) -> bool:
    return any(
        need == place or need.startswith(f"{place}.") or place.startswith(f"{need}.")
        for need in finding.needs
        for place in touched
    )
