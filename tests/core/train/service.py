"""A home with a migrated database and a tiny model, and attempts of train runs that go through the real store."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from core.jobs import Outcome, RunContext
from core.recipes import family_hash, local_models, parse_recipe, recipe_hash, resolved
from core.settings import Settings
from core.store import queue, runs
from core.store.database import Database
from core.store.migrations_api import migrate
from core.store.states import RunState
from tests.core.engines.conftest import make_llama, make_tokenizer

TINY = "tiny"
RECIPE: dict[str, Any] = {
    "kind": "train",
    "model": TINY,
    "data": {
        "dataset": "reasoning_gym:chain_sum",
        "holdout": 20,
        "options": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1, "size": 300},
    },
    "rewards": {"auto": 1.0, "random": 1.0},
    "max_steps": 6,
    "prompts_per_step": 3,
    "num_generations": 4,
    "max_prompt_length": 200,
    "max_completion_length": 8,
    "learning_rate": 0.003,
    "device": {"kind": "cpu", "memory_gib": 4},
    "looks": {"every": 3, "m": 10, "base_runs": 2},
    "damage_stop": {"rule": "eprocess", "action": "warn"},
    "save": {"every": 2},
    "seed": 5,
}


class Killed(BaseException):
    """Stands in for a process that ends without a word."""


@dataclass
class ScriptedControl:
    """Answers what the script says at each question; a raised :class:`Killed` ends the attempt like a SIGKILL."""

    script: Callable[[int], Any] = lambda question: None
    asked: int = field(default=0)

    @property
    def requested(self) -> Any:
        self.asked += 1
        return self.script(self.asked)


@cache
def _template() -> dict[str, bytes]:
    """The files of a home with a migrated database and the tiny model in its model folder, made once a process."""
    with TemporaryDirectory() as made:
        home = Path(made)
        folder = home / "models-folder" / TINY
        folder.mkdir(parents=True)
        make_llama().save_pretrained(folder)
        make_tokenizer().save_pretrained(folder)
        migrate(f"sqlite:///{home / 'driftline.db'}")
        return {str(path.relative_to(home)): path.read_bytes() for path in home.rglob("*") if path.is_file()}


class Service:
    """The store and settings of one test, and attempts at its runs."""

    def __init__(self, home: Path) -> None:
        models = home / "models-folder"
        self.settings = Settings(
            home=home, database_url=f"sqlite:///{home / 'driftline.db'}", broker_url="", models_dir=models
        )
        models.mkdir(parents=True)
        for name, content in _template().items():
            path = home / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content)
        self.db = Database(self.settings.database_url)
        self._posted = 0

    def post(self, **changes: Any) -> str:
        """Create a train run from the tiny recipe with ``changes`` and return its id."""
        return self.post_recipe(RECIPE | changes)

    def post_recipe(self, submitted: dict[str, Any]) -> str:
        """Create a run from any recipe, more urgent than those before it, and return its id."""
        self._posted += 1
        recipe = parse_recipe(submitted, known_models=local_models(self.settings.models_dir))
        with self.db.write() as session:
            run = runs.create(
                session,
                recipe=resolved(recipe),
                submitted=submitted,
                recipe_hash=recipe_hash(recipe),
                family_hash=family_hash(recipe),
                model=submitted.get("model", ""),
                name="test",
                kind=recipe.kind,
                priority=self._posted,
                tags=[],
                after=[],
                max_attempts=20,
            )
        return run.id

    def attempt(self, run_id: str, control: ScriptedControl | None = None) -> RunContext:
        """Claim the run as a worker would and return what its runner would hand to the job."""
        with self.db.write() as session:
            claim = queue.claim(session, worker_id="0" * 12, device={"kind": "cpu"}, ttl=3600.0)
        assert claim is not None
        assert claim.run_id == run_id
        with self.db.read() as session:
            recipe = parse_recipe(runs.get(session, run_id).recipe, known_models=local_models(self.settings.models_dir))
        return RunContext(
            run_id=run_id,
            attempt=claim.attempt,
            fence=claim.fence,
            recipe=recipe,
            settings=self.settings,
            db=self.db,
            control=control or ScriptedControl(),
            device={"kind": "cpu", "name": "cpu", "memory_bytes": 8 * 2**30},
            log=logging.getLogger("test"),
        )

    def finish(self, context: RunContext, outcome: Outcome) -> None:
        """What the runner does with an outcome that ends the run."""
        with self.db.fenced(context.fence) as session:
            queue.finish(session, context.fence, state=RunState(outcome.state), reason=outcome.reason)

    def lost(self, context: RunContext) -> None:
        """What the supervisor does when the runner is gone."""
        with self.db.fenced(context.fence) as session:
            queue.interrupt(session, context.fence, reason="killed")
