"""A live service in a temporary home: the real supervisor, api, worker, runner and Valkey, with a tiny or the real model.

Waits are on conditions with a deadline; processes are ended by the pids that the service itself names.
"""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from client.api import DriftlineClient
from client.errors import ClientError
from client.place import Server, read_server
from tests.core.engines.conftest import make_llama, make_tokenizer

ROOT = Path(__file__).resolve().parents[2]
FINAL = {"succeeded", "damage_stopped", "failed", "cancelled"}
DEADLINE_S = 240.0


def wait_for(what: str, condition: Callable[[], Any], timeout_s: float = DEADLINE_S) -> Any:
    """Return the first truthy answer of ``condition``, asked again and again; fail naming ``what`` after the deadline."""
    pause, end = threading.Event(), time.monotonic() + timeout_s
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        pause.wait(0.1)
    raise AssertionError(f"waited {timeout_s:g} s in vain: {what}")


class Live:
    """One running service. ``home`` holds its database, logs and checkpoints."""

    def __init__(self, home: Path, models: Path, **env: str) -> None:
        self.home = home
        self._env = {
            **os.environ,
            "DRIFTLINE_HOME": str(home),
            "DRIFTLINE_MODELS": str(models),
            "DRIFTLINE_LEASE_TTL_S": "4",
            "DRIFTLINE_HEARTBEAT_S": "1",
            "DRIFTLINE_SWEEP_S": "0.5",
            "PYTHONPATH": str(ROOT),
            **env,
        }
        self._env.pop("DRIFTLINE_URL", None)
        self.command("up", "--background")
        self.client = DriftlineClient(self.server.url)

    def command(self, *words: str, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
        """Run ``driftline WORDS`` in ``folder`` and return what it printed; fails when it does."""
        done = subprocess.run(
            [sys.executable, "-m", "client.cli", *words],
            env=self._env,
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"driftline {' '.join(words)}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    @property
    def server(self) -> Server:
        found = read_server(self.home)
        assert found is not None
        return found

    def stop(self) -> None:
        self.client.close()
        self.command("down")

    def runner_pid(self, run_id: str) -> int | None:
        """Pid of the runner of the run's current attempt, as the store has it; None while there is none."""
        row = self.rows("select runner_pid from attempts where run_id = ? and state = 'running'", run_id)
        return row[-1][0] if row and row[-1][0] else None

    def rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """Read from the service's database, beside it."""
        connection = sqlite3.connect(f"file:{self.home / 'driftline.db'}?mode=ro", uri=True, timeout=30)
        try:
            return connection.execute(query, values).fetchall()
        finally:
            connection.close()

    def ready(self) -> None:
        """Wait until api, database, broker and worker all answer again."""

        def answers() -> bool:
            try:
                return bool(self.client.ready()["status"] == "ready")
            except ClientError:
                return False

        wait_for("the service to be ready", answers)

    def kill(self, name: str) -> None:
        """End the child ``name`` (api, worker or broker) like a power cut."""
        os.kill(self.server.children[name].pid, signal.SIGKILL)

    def at_step(self, run_id: str, step: int) -> None:
        wait_for(f"step {step}", lambda: (self.client.run(run_id).get("step") or 0) >= step)

    def finished(self, run_id: str, timeout_s: float = DEADLINE_S) -> dict[str, Any]:
        def final() -> dict[str, Any] | None:
            run = self.client.run(run_id)
            return run if run["state"] in FINAL else None

        found: dict[str, Any] = wait_for(f"run {run_id} to end", final, timeout_s)
        return found

    def weights(self, run_id: str) -> dict[int, str]:
        """Hash of the weights at each checkpoint of the current trajectory."""
        query = "select step, sha256 from checkpoints where run_id = ? and not superseded order by step"
        return dict(self.rows(query, run_id))


def tiny_models(folder: Path) -> Path:
    """Write the tiny model as an operator's model folder."""
    target = folder / "tiny"
    target.mkdir(parents=True)
    make_llama().save_pretrained(target)
    make_tokenizer().save_pretrained(target)
    return folder


def tiny_recipe(**changes: Any) -> dict[str, Any]:
    """A train recipe on the tiny model whose reward has a random part, so that weights move at every step."""
    return {
        "kind": "train",
        "model": "tiny",
        "data": {
            "dataset": "reasoning_gym:chain_sum",
            "holdout": 20,
            "options": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1, "size": 300},
        },
        "rewards": {"auto": 1.0, "random": 1.0},
        "max_steps": 12,
        "prompts_per_step": 3,
        "num_generations": 4,
        "max_prompt_length": 200,
        "max_completion_length": 16,
        "learning_rate": 0.003,
        "device": {"kind": "cpu", "memory_gib": 8},
        "looks": {"every": 6, "m": 10, "base_runs": 2},
        "damage_stop": {"rule": "eprocess", "action": "warn"},
        "save": {"every": 3},
        "max_attempts": 10,
        "seed": 5,
    } | changes


def steps_of(curves: dict[str, Any], key: str) -> list[int]:
    return [point[0] for point in curves["curves"][key]["points"]]


def values_of(curves: dict[str, Any], key: str) -> list[Any]:
    return [point[1] for point in curves["curves"][key]["points"]]


def pretty(value: Any) -> str:
    return json.dumps(value, indent=1)
