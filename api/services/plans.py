"""What a dry run answers: the recipe as it would be stored, whether it fits each worker's card, and what it would cost.

The arithmetic is ``core.planning``'s; here the cards are found and the models behind references to runs.
"""

import shutil
from dataclasses import asdict
from typing import Any

from sqlalchemy.orm import Session

from api.services import prespecs
from api.services.submission import AnyRecipe, Submission
from api.services.system import fresh_s
from core.planning import Card, Plan, PlanError, estimate, model_facts, plan
from core.planning.cost import eval_samples
from core.recipes import AnalysisRecipe, EvalRecipe, RecipeError, TrainRecipe
from core.recipes.catalogue import ModelFacts
from core.recipes.model_refs import is_run_ref
from core.recipes.sources import suite_items
from core.recipes.trajectories import locate
from core.settings import Settings
from core.store import queue, runs
from core.store.database import now
from core.store.models import Worker

_GIB = 1 << 30
_SHAPE = ("family", "layers", "hidden", "intermediate", "heads", "kv_heads", "head_dim", "vocab")


def dry_run(session: Session, wanted: Submission, settings: Settings) -> dict[str, Any]:
    """The answer to ``?dry_run=true``. Nothing is stored, and a recipe that does not fit is no error."""
    recipe = wanted.recipe
    facts = _facts(session, recipe, settings)
    cards = _cards(session, recipe, facts, settings)
    return {
        "valid": True,
        "recipe": wanted.resolved,
        "recipe_hash": wanted.recipe_hash,
        "family_hash": wanted.family_hash,
        "features_missing": [
            {"param": problem.param, "message": problem.message, "hint": problem.hint} for problem in wanted.missing
        ],
        "fits": any(card["fits"] for card in cards),
        "cards": cards,
        "cost": _cost(recipe, facts),
        "prespecification": (
            prespecs.automatic(recipe, run_of_family=None, at=now(session)) if isinstance(recipe, TrainRecipe) else None
        ),
    }


def refuse_unfit(session: Session, wanted: Submission, settings: Settings) -> None:
    """Refuse a recipe that cannot fit the device it asks for. Raises :class:`RecipeError`."""
    recipe = wanted.recipe
    facts = _facts(session, recipe, settings)
    if isinstance(recipe, AnalysisRecipe):
        return
    planned = plan(recipe, _wanted_card(recipe), facts=facts)
    if not planned.fits:
        message = (
            f"the plan needs {planned.peak_gib:.2f} GiB at its peak, and {planned.budget_gib:.2f} GiB are asked for"
        )
        hint = (
            f"smallest change that fits: {planned.smallest_change}"
            if planned.smallest_change
            else "no single change is enough"
        )
        raise RecipeError("device.memory_gib", message, f"{hint}; ?dry_run=true shows the plan by component")


def _cards(session: Session, recipe: AnyRecipe, facts: ModelFacts, settings: Settings) -> list[dict[str, Any]]:
    """The plan on every live worker's card; without a worker, on the device the recipe asks for."""
    live = queue.live_workers(session, fresh_s(settings))
    if live:
        return [_on_worker(worker, recipe, facts, settings) for worker in live]
    planned = plan(recipe, _wanted_card(recipe), facts=facts)
    device = {"kind": "cpu"} if isinstance(recipe, AnalysisRecipe) else recipe.device.model_dump()
    return [_card(None, device, planned, settings)]


def _on_worker(worker: Worker, recipe: AnyRecipe, facts: ModelFacts, settings: Settings) -> dict[str, Any]:
    device = worker.device or {}
    host = device.get("host_bytes") or None
    card = Card(
        memory_gib=device.get("memory_bytes", 0) / _GIB,
        name=str(device.get("name", "unknown")),
        host_gib=None if host is None else host / _GIB,
    )
    answer = _card(worker.id, device, plan(recipe, card, facts=facts), settings)
    if not isinstance(recipe, AnalysisRecipe) and recipe.device.kind != device.get("kind"):
        return answer | {"fits": False, "smallest_change": f"device.kind {device.get('kind')}"}
    return answer


def _card(worker_id: str | None, device: dict[str, Any], planned: Plan, settings: Settings) -> dict[str, Any]:
    free = shutil.disk_usage(settings.home).free / _GIB
    return {
        "worker_id": worker_id,
        "device": device,
        "fits": planned.fits,
        "plan": {name: value for name, value in asdict(planned).items() if name not in {"fits", "smallest_change"}},
        "smallest_change": planned.smallest_change,
        "disk_free_gib": round(free, 3),
        "disk_fits": planned.disk_gib <= free,
    }


def _wanted_card(recipe: AnyRecipe) -> Card:
    if isinstance(recipe, AnalysisRecipe):
        return Card(memory_gib=8.0, name="an analysis runs on the host; 8 GiB are assumed")
    return Card(memory_gib=recipe.device.memory_gib, name=f"the recipe's own device ({recipe.device.kind})")


def _facts(session: Session, recipe: AnyRecipe, settings: Settings) -> ModelFacts:
    """Shape of the model, following checkpoints of runs to the model their run started from.

    A deleted run on that way is no obstacle: its tombstone keeps the recipe, and no weight is read.
    """
    if isinstance(recipe, AnalysisRecipe):
        return _shape(session, _first_model(recipe, settings), "model", settings)
    facts = _shape(session, recipe.model, "model", settings)
    if isinstance(recipe, EvalRecipe) and recipe.extrapolation is not None:
        first = _shape(session, recipe.extrapolation.a, "extrapolation.a", settings)
        # Only what every source of facts knows for certain; the job compares the configurations themselves.
        differing = [field for field in _SHAPE if getattr(first, field) != getattr(facts, field)]
        if differing:
            raise RecipeError(
                "extrapolation.a",
                f"a and b are not checkpoints of one architecture: they differ in {', '.join(differing)}",
                "take both from one run, or from runs of one model",
            )
    return facts


def _shape(session: Session, model: str, param: str, settings: Settings) -> ModelFacts:
    while is_run_ref(model):
        stored = runs.get(session, model.removeprefix("run:").partition("/")[0], deleted=True).recipe
        if "model" not in stored:
            raise RecipeError(param, f"{model} is an analysis and has no model", "name a train or eval run")
        model = stored["model"]
    try:
        return model_facts(model, settings.models_dir)
    except PlanError as exc:
        raise RecipeError(param, str(exc), "GET /capabilities lists the models that can be planned") from None


def _first_model(recipe: AnalysisRecipe, settings: Settings) -> str:
    """What an analysis is about: a run, or the first of the checkpoints that it names."""
    if recipe.checkpoints is None:
        return recipe.run or ""
    return locate(recipe.checkpoints, settings.models_dir)[0].name


def _cost(recipe: AnyRecipe, facts: ModelFacts) -> dict[str, Any]:
    if isinstance(recipe, TrainRecipe):
        return asdict(estimate(recipe, facts))
    if isinstance(recipe, EvalRecipe):
        sizes = {spec.suite: suite_items(spec.suite) for spec in recipe.suites}
        known = {name: size for name, size in sizes.items() if size is not None}
        samples = eval_samples(recipe, known) if len(known) == len(sizes) else None
        return {
            "samples": samples,
            "tokens_generated": None if samples is None else samples * recipe.max_completion_length,
        }
    return {}
