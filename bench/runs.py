"""Runs without a service around them: a home with its own store, recipes posted to it, and their jobs run in this process.

For benches that measure the trainer and the evaluation through the code that users run, records included.
"""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from core.evals.job import run_evaluation
from core.jobs import Outcome, RunContext
from core.recipes import TrainRecipe, family_hash, parse_recipe, recipe_hash, resolved
from core.settings import Settings
from core.store import metrics, queue, runs
from core.store.database import Database
from core.store.migrations_api import migrate
from core.train.loop import run_training


class Undisturbed:
    """Nothing is ever asked of the run."""

    requested = None


@dataclass(frozen=True)
class Home:
    """A folder with a store. ``device`` is what runs are told they have."""

    settings: Settings
    db: Database
    device: dict[str, Any]

    def run(self, recipe: dict[str, Any]) -> tuple[str, Outcome]:
        """Post ``recipe``, claim it as a worker would, and run its job to the end."""
        parsed = parse_recipe(recipe, known_models=None)
        with self.db.write() as session:
            run = runs.create(
                session,
                recipe=resolved(parsed),
                submitted=recipe,
                recipe_hash=recipe_hash(parsed),
                family_hash=family_hash(parsed),
                model=parsed.model,
                name="bench",
                kind=parsed.kind,
                priority=0,
                tags=[],
                after=[],
                max_attempts=1,
            )
            run_id = run.id
        with self.db.write() as session:
            claim = queue.claim(session, worker_id="0" * 12, device=self.device, ttl=24 * 3600.0)
        if claim is None or claim.run_id != run_id:
            raise RuntimeError(f"run {run_id} could not be claimed for {self.device}")
        context = RunContext(
            run_id=run_id,
            attempt=claim.attempt,
            fence=claim.fence,
            recipe=parsed,
            settings=self.settings,
            db=self.db,
            control=Undisturbed(),
            device=self.device,
            log=logging.getLogger("bench"),
        )
        return run_id, (run_training if isinstance(parsed, TrainRecipe) else run_evaluation)(context)

    def curves(self, run_id: str) -> dict[str, list[float]]:
        """Every curve of a run, by step."""
        with self.db.read() as session:
            found = metrics.curves(session, run_id)
        return {key: [point.value for point in curve.points] for key, curve in found.items()}


def reference(model: Path) -> str:
    """The name of a model folder in recipes: with its parent's, so that it is never that of the bundled model."""
    return f"{model.parent.name}/{model.name}"


def open_home(folder: Path, model: Path, data: Path) -> Home:
    """Make a home in ``folder`` whose items lie in ``data`` and whose recipes can name ``model`` (by :func:`reference`)."""
    settings = Settings(
        home=folder,
        database_url=f"sqlite:///{folder / 'driftline.db'}",
        broker_url="",
        models_dir=model.parent.parent,
        data_dir=data,
    )
    migrate(settings.database_url)
    if torch.cuda.is_available():
        card = torch.cuda.get_device_properties(0)
        device = {"kind": "cuda", "uuid": "bench", "name": card.name, "memory_bytes": card.total_memory}
    else:
        device = {"kind": "cpu", "uuid": "cpu", "name": "cpu", "memory_bytes": 8 * 2**30}
    return Home(settings, Database(settings.database_url), device)
