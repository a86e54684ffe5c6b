"""A migrated SQLite database in a fresh home, runs to put into it, and a journal of what runners did."""

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from core.recipes import family_hash, parse_recipe, recipe_hash, resolved
from core.settings import Settings
from core.store import runs
from core.store.database import Database
from core.store.migrations_api import migrate


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("template") / "driftline.db"
    migrate(f"sqlite:///{path}")
    return path


@pytest.fixture
def settings(tmp_path, migrated_file):
    home = tmp_path / "home"
    home.mkdir()
    shutil.copy(migrated_file, home / "driftline.db")
    return Settings(
        home=home,
        database_url=f"sqlite:///{home / 'driftline.db'}",
        broker_url="redis://127.0.0.1:1/0",
        lease_ttl_s=20.0,
        heartbeat_s=0.5,
        sweep_s=0.3,
    )


@pytest.fixture
def db(settings):
    database = Database(settings.database_url)
    yield database
    database.dispose()


@dataclass
class Desk:
    """Where a test puts runs in and looks at what became of them."""

    db: Database
    home: Path

    def submit(self, name, *, priority=0, max_attempts=3):
        """Queue a run whose fake runner behaves as ``name`` (a function of fake_runner) says; return its id."""
        recipe = parse_recipe(
            {
                "kind": "eval",
                "name": name,
                "model": "smollm2-135m",
                "suites": ["gsm8k"],
                "device": {"kind": "cpu"},
                "priority": priority,
                "max_attempts": max_attempts,
            }
        )
        with self.db.write() as session:
            run = runs.create(
                session,
                recipe=resolved(recipe),
                submitted={},
                recipe_hash=recipe_hash(recipe),
                family_hash=family_hash(recipe),
                model=recipe.model,
                name=name,
                kind="eval",
                priority=priority,
                max_attempts=max_attempts,
            )
        return run.id

    def run(self, run_id):
        with self.db.read() as session:
            return runs.get(session, run_id)

    def state(self, run_id):
        return str(self.run(run_id).state)

    def attempts(self, run_id):
        with self.db.read() as session:
            return runs.attempts(session, run_id)

    def cancel(self, run_id):
        with self.db.write() as session:
            runs.request_cancel(session, run_id)

    def pause(self, run_id):
        with self.db.write() as session:
            runs.request_pause(session, run_id)

    def journal(self, run_id):
        """What the run's runners wrote, line by line."""
        path = self.home / f"journal-{run_id}"
        return path.read_text().splitlines() if path.exists() else []

    def started(self, run_id):
        """Pids of the runners that began to work, first attempt first."""
        return [int(line.split()[2]) for line in self.journal(run_id) if " started " in line]


@pytest.fixture
def desk(db, settings):
    return Desk(db, settings.home)
