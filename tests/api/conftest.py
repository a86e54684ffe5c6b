"""A real service on a real SQLite file: settings, a client, and a builder of runs written through the repositories."""

import hashlib
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from api.app import create_app
from core.settings import Settings
from core.store import analyses, checkpoints, evaluations, looks, metrics, queue, rollouts, runs
from core.store.database import Database, Fence
from core.store.migrations_api import migrate
from core.store.states import RunState
from core.store.types import new_id

BASE_URL = "http://127.0.0.1:8421"
LOCAL = ("127.0.0.1", 50000)


def recipe(**changes: Any) -> dict[str, Any]:
    """A small train recipe that this release can run; None removes a field."""
    body: dict[str, Any] = {
        "kind": "train",
        "name": "small",
        "model": "smollm2-135m",
        "data": {"dataset": "reasoning_gym:chain_sum", "holdout": 80, "options": {"size": 400}},
        "max_steps": 12,
        "prompts_per_step": 4,
        "num_generations": 4,
        "max_completion_length": 32,
        "device": {"kind": "cpu"},
        "looks": {"every": 4, "m": 16},
        "damage_stop": {"rule": "eprocess", "action": "stop"},
        "tags": ["demo"],
    }
    body.update(changes)
    return {name: value for name, value in body.items() if value is not None}


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated database without rows, made once and copied by every test."""
    path = tmp_path_factory.mktemp("database") / "driftline.db"
    migrate(f"sqlite:///{path}")
    return path


@pytest.fixture
def settings(tmp_path: Path, empty_database: Path) -> Settings:
    """Settings of a service whose home is the test's folder; nothing listens at its broker."""
    (tmp_path / "driftline.db").write_bytes(empty_database.read_bytes())
    return Settings(
        home=tmp_path, database_url=f"sqlite:///{tmp_path / 'driftline.db'}", broker_url="redis://127.0.0.1:1/0"
    )


@pytest.fixture
def db(settings: Settings) -> Iterator[Database]:
    """The service's database, as a runner sees it."""
    database = Database(settings.database_url)
    yield database
    database.dispose()


@pytest.fixture(scope="session")
def app(empty_database: Path) -> FastAPI:
    """The application, put together once: only the parts it is given change from test to test."""
    home = empty_database.parent
    return create_app(Settings(home, f"sqlite:///{empty_database}", "redis://127.0.0.1:1/0"), sweep=False)


@pytest.fixture
def client(app: FastAPI, settings: Settings) -> Iterator[TestClient]:
    """A client on the loopback interface of a service without tokens."""
    app.state.service = replace(app.state.service, settings=settings, db=Database(settings.database_url))
    with TestClient(app, base_url=BASE_URL, client=LOCAL) as test_client:
        yield test_client


@dataclass
class Builder:
    """Plays the parts of a client and a runner, so that endpoints have something to show."""

    client: TestClient
    db: Database
    settings: Settings
    worker: str = ""

    def queued(self, **changes: Any) -> dict[str, Any]:
        """Post a recipe and return the run."""
        answer = self.client.post("/runs", json=recipe(**changes))
        assert answer.status_code == 201, answer.text
        body: dict[str, Any] = answer.json()
        return body

    def running(self, **changes: Any) -> Fence:
        """Post a recipe and claim it."""
        run = self.queued(**changes)
        return self.claimed(run["id"])

    def claimed(self, run_id: str, ttl: float = 120.0) -> Fence:
        """Claim the next run as a live worker; it must be ``run_id``."""
        device = {"kind": "cpu", "name": "cpu", "memory_bytes": 16 << 30}
        with self.db.write() as session:
            self.worker = self.worker or queue.register_worker(session, hostname="host", pid=1, device=device)
            claim = queue.claim(session, worker_id=self.worker, device=device, ttl=ttl)
        assert claim is not None
        assert claim.run_id == run_id
        return claim.fence

    def points(self, fence: Fence, key: str, values: list[float], first: int = 1) -> None:
        """Record one value per step."""
        with self.db.fenced(fence) as session:
            for step, value in enumerate(values, first):
                metrics.record(session, fence, step, {key: value})

    def evaluation(self, fence: Fence, step: int, purpose: str, right: str, **changes: Any) -> str:
        """Store a finished evaluation; ``right`` has one character per item: 1 right, 0 wrong, x not judged."""
        judged = [char for char in right if char != "x"]
        share = judged.count("1") / len(judged)
        with self.db.fenced(fence) as session:
            made = evaluations.start(
                session,
                fence,
                **{
                    "step": step,
                    "purpose": purpose,
                    "model_ref": "smollm2-135m",
                    "suite": "holdout",
                    "mode": "greedy",
                    "n_items": len(right),
                    "verifier": "reasoning_gym",
                    "verifier_version": "1",
                }
                | changes,
            )
            evaluations.add_records(session, fence, made, [_record(index, char) for index, char in enumerate(right)])
            evaluations.finish(
                session,
                fence,
                made,
                accuracy=share,
                ci_low=max(0.0, share - 0.1),
                ci_high=min(1.0, share + 0.1),
                correct=float(judged.count("1")),
            )
        return made

    def look(
        self, fence: Fence, step: int, number: int, evaluation_id: str, base: str, now: str, **changes: Any
    ) -> str:
        """Store a look that compares ``now`` with ``base`` item by item."""
        draw = [
            {"item_id": f"item-{index}", "b": float(b), "c": float(c), "d": float(b) - float(c)}
            for index, (b, c) in enumerate(zip(base, now, strict=True))
        ]
        lost = sum(entry["d"] > 0 for entry in draw)
        gained = sum(entry["d"] < 0 for entry in draw)
        with self.db.fenced(fence) as session:
            row = looks.add(
                session,
                fence,
                **{
                    "step": step,
                    "number": number,
                    "evaluation_id": evaluation_id,
                    "suite": "holdout",
                    "n": len(now),
                    "lost": lost,
                    "gained": gained,
                    "state": "no_damage_shown",
                    "accuracy": now.count("1") / len(now),
                    "ci_low": 0.2,
                    "ci_high": 0.9,
                    "d_histogram": {"1": lost, "0": len(now) - lost - gained, "-1": gained},
                    "statistic": 1.25,
                    "threshold": 20.0,
                    "draw": draw,
                }
                | changes,
            )
        return row.id

    def checkpoint(self, fence: Fence, step: int, content: bytes = b"weights") -> str:
        """Write a checkpoint folder with two files and record it."""
        folder = self.settings.checkpoint_dir(fence.run_id, fence.attempt, step)
        folder.mkdir(parents=True)
        files = {"model.safetensors": content, "config.json": b"{}"}
        facts = {}
        for name, data in files.items():
            (folder / name).write_bytes(data)
            facts[name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        with self.db.fenced(fence) as session:
            row = checkpoints.add(
                session,
                fence,
                step=step,
                path=str(folder.relative_to(self.settings.home)),
                sha256=hashlib.sha256(content).hexdigest(),
                files=facts,
                bytes=sum(len(data) for data in files.values()),
                has_optimizer=True,
                provenance={"note": "test"},
            )
        return row.id

    def rollouts(self, fence: Fence, step: int, rewards: list[float]) -> None:
        """Store one sample per reward, two to a group."""
        rows = [
            {
                "group_index": index // 2,
                "item_id": f"item-{index // 2}",
                "sample": index % 2,
                "prompt_sha256": "a" * 64,
                "token_ids": [1, 2, 3],
                "text": f"the answer is {index}",
                "reward": reward,
                "reward_terms": {"reasoning_gym": reward},
                "verdict": "correct" if reward == 1 else "wrong",
                "advantage": reward - 0.5,
                "logp_mean": -0.25,
                "n_tokens": 3,
                "finish_reason": "stop",
                "zero_variance": False,
                "weights_version": step - 1,
            }
            for index, reward in enumerate(rewards)
        ]
        with self.db.fenced(fence) as session:
            rollouts.add_step(session, fence, step, rows)

    def analysis(self, fence: Fence, target_run_id: str) -> str:
        """Store an analysis with one Plotly figure on disk."""
        made = new_id()
        folder = self.settings.analysis_dir(made)
        folder.mkdir(parents=True)
        (folder / "r2.json").write_text(json.dumps({"data": []}))
        with self.db.fenced(fence) as session:
            row = analyses.add(
                session,
                fence,
                target_run_id=target_run_id,
                name="weight_linearity",
                params={},
                result={"median": 0.9},
                figures=["r2.json"],
                id=made,
            )
        return row.id

    def log(self, run_id: str, attempt: int, text: str) -> None:
        """Write a runner's log file."""
        path = self.settings.log_file(run_id, attempt)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def finish(self, fence: Fence, state: RunState = RunState.SUCCEEDED) -> None:
        """End the run."""
        with self.db.fenced(fence) as session:
            queue.finish(session, fence, state=state, reason="all steps done")

    def finished(self, **changes: Any) -> "FinishedRun":
        """A whole small run: curves with a lost value, two base evaluations, two looks, rollouts, checkpoints, a log."""
        fence = self.running(**changes)
        self.points(fence, "reward", [0.25, 0.5, float("nan"), 0.75, 1.0, 0.5, 0.5, 0.75])
        self.points(fence, "step_time", [2.0] * 8)
        base = self.evaluation(fence, 0, "base", "1111111100")
        repeat = self.evaluation(fence, 0, "base_repeat", "1111111000")
        first = self.evaluation(fence, 4, "look", "1111110110")
        second = self.evaluation(fence, 8, "look", "1110110111")
        found = [
            self.look(fence, 4, 1, first, "1111111100", "1111110110"),
            self.look(fence, 8, 2, second, "1111111100", "1110110111", statistic=2.5),
        ]
        self.rollouts(fence, 1, [1.0, 0.0, 1.0, 1.0])
        self.rollouts(fence, 2, [0.0, 0.0])
        kept = [self.checkpoint(fence, 4, b"weights at 4"), self.checkpoint(fence, 8, b"weights at 8")]
        with self.db.fenced(fence) as session:
            runs.progress(session, fence, phase="train", done=8, total=12, unit="step", step=8)
        analysis = self.analysis(fence, fence.run_id)
        self.log(fence.run_id, fence.attempt, "INFO start\nWARNING slow\nERROR broke\nTraceback\n  line\nINFO end\n")
        self.finish(fence)
        return FinishedRun(fence.run_id, base, repeat, [first, second], found, kept, analysis)


@dataclass(frozen=True)
class FinishedRun:
    """Ids of what :meth:`Builder.finished` stored."""

    id: str
    base: str
    repeat: str
    look_evaluations: list[str]
    looks: list[str]
    checkpoints: list[str]
    analysis: str


@pytest.fixture
def build(client: TestClient, db: Database, settings: Settings) -> Builder:
    """The builder on this test's service."""
    return Builder(client, db, settings)


@pytest.fixture(scope="session")
def finished_home(
    app: FastAPI, empty_database: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, FinishedRun]:
    """The home of a service with one finished run, built once; tests get copies."""
    home = tmp_path_factory.mktemp("finished")
    (home / "driftline.db").write_bytes(empty_database.read_bytes())
    made = Settings(home, f"sqlite:///{home / 'driftline.db'}", "redis://127.0.0.1:1/0")
    database = Database(made.database_url)
    app.state.service = replace(app.state.service, settings=made, db=database)
    run = Builder(TestClient(app, base_url=BASE_URL, client=LOCAL), database, made).finished()
    database.dispose()
    return home, run


@pytest.fixture
def finished(finished_home: tuple[Path, FinishedRun], settings: Settings) -> FinishedRun:
    """A finished run in this test's service. No connection is open yet, so the whole home can be replaced."""
    home, run = finished_home
    shutil.copytree(home, settings.home, dirs_exist_ok=True)
    return run


def _record(index: int, char: str) -> dict[str, Any]:
    return {
        "item_id": f"item-{index}",
        "position": index,
        "prompt_sha256": hashlib.sha256(str(index).encode()).hexdigest(),
        "token_ids": [7, index],
        "text": f"answer {index}",
        "gold": "4",
        "extracted": "4" if char == "1" else "5",
        "verdict": {"1": "correct", "0": "wrong", "x": "infra_error"}[char],
        "reason": None,
        "finish_reason": "stop",
        "n_tokens": 2,
        "verifier_version": "1",
        "verify_ms": 0.5,
    }
