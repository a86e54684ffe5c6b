"""How fast the two polled endpoints answer: curves of 100,000 points thinned to 500, and the damage-stop status.

Starts a real uvicorn on a loopback port with a temporary SQLite database that is filled with a long run, asks over
one kept-alive connection, prints a table and writes JSON. It asserts nothing: a busy machine would make a timed test lie.

    python bench/api_latency.py [--requests 200] [--json bench/results/api_latency.json]
"""

import argparse
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from sqlalchemy import insert

from core.settings import Settings
from core.store import evaluations, looks, metrics, queue
from core.store.database import Database, Fence
from core.store.migrations_api import migrate
from core.store.models import Metric, MetricSeries
from worker.launch import settings_environment

POINTS = 100_000
POOL = 1000
DRAWN = 200
LOOKS = 30
KEYS = ("reward", "loss", "entropy", "kl", "grad_norm", "step_time")
RECIPE: dict[str, Any] = {
    "kind": "train",
    "model": "smollm2-135m",
    "data": {"dataset": "gsm8k", "holdout": POOL},
    "max_steps": POINTS,
    "prompts_per_step": 8,
    "num_generations": 8,
    "max_completion_length": 256,
    "device": {"kind": "cpu", "memory_gib": 64},
    "engine": "transformers",
    "looks": {"every": POINTS // LOOKS, "m": DRAWN},
    "damage_stop": "eprocess",
}


@dataclass(frozen=True)
class Timing:
    """Milliseconds of one endpoint over all requests."""

    name: str
    median_ms: float
    p95_ms: float
    worst_ms: float
    bytes: int


def main() -> None:
    """Fill, serve, ask, report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--json", type=Path, default=Path("bench/results/api_latency.json"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        settings = Settings(
            home, f"sqlite:///{home / 'driftline.db'}", "redis://127.0.0.1:1/0", port=_free_port(), sweep_s=3600
        )
        migrate(settings.database_url)
        with _served(settings), httpx.Client(base_url=f"http://127.0.0.1:{settings.port}", timeout=60) as client:
            _wait(client)
            run_id = _post(client)
            fill(Database(settings.database_url), run_id)
            timings = ask(client, run_id, options.requests)
    report(timings, options.json, options.requests)


@contextmanager
def _served(settings: Settings) -> Iterator[None]:
    """The api in a process of its own, so that the asking side does not share its interpreter's lock."""
    process = subprocess.Popen([sys.executable, "-m", "api"], env={**os.environ, **settings_environment(settings)})
    try:
        yield
    finally:
        process.terminate()
        process.wait(30)


def fill(db: Database, run_id: str) -> None:
    """Write the curves, two base evaluations and the looks of a long run."""
    fence = _claim(db, run_id)
    started = time.perf_counter()
    at = db.now()
    with db.fenced(fence) as session:
        # One statement per curve: recording 100,000 steps one by one, as a runner does, would take minutes.
        for key in KEYS:
            points = [_point(run_id, key, step, at - (POINTS - step)) for step in range(1, POINTS)]
            session.execute(insert(Metric), points)
            session.execute(insert(MetricSeries), [_series(run_id, key)])
        metrics.record(session, fence, POINTS, dict.fromkeys(KEYS, 0.5))
    print(f"filled {POINTS} steps of {len(KEYS)} curves in {time.perf_counter() - started:.0f} s")
    for purpose in ("base", "base_repeat"):
        _evaluation(db, fence, 0, purpose, POOL)
    for number in range(1, LOOKS + 1):
        step = number * (POINTS // LOOKS)
        made = _evaluation(db, fence, step, "look", DRAWN)
        draw = [
            {"item_id": f"item-{item}", "b": 1.0, "c": float(item % 9 > 0), "d": float(item % 9 == 0)}
            for item in range(DRAWN)
        ]
        with db.fenced(fence) as session:
            looks.add(
                session,
                fence,
                step=step,
                number=number,
                evaluation_id=made,
                suite="holdout",
                n=DRAWN,
                lost=sum(entry["d"] for entry in draw),
                gained=0,
                state="no_damage_shown",
                accuracy=0.6,
                ci_low=0.5,
                ci_high=0.7,
                statistic=1.0,
                threshold=20.0,
                draw=draw,
            )
    db.dispose()


def ask(client: httpx.Client, run_id: str, requests: int) -> list[Timing]:
    """Time every endpoint, one request after another."""
    etag = client.get(f"/runs/{run_id}/damage-stop").headers["ETag"]
    return [
        _time(client, "curves, 1 key, max_points=500", f"/runs/{run_id}/curves?keys=reward&max_points=500", requests),
        _time(client, f"curves, {len(KEYS)} keys, max_points=500", f"/runs/{run_id}/curves?max_points=500", requests),
        _time(client, "damage-stop, 200", f"/runs/{run_id}/damage-stop", requests),
        _time(client, "damage-stop, 304", f"/runs/{run_id}/damage-stop", requests, {"If-None-Match": etag}),
        _time(client, "run", f"/runs/{run_id}", requests),
        _time(client, "list of runs", "/runs", requests),
    ]


def report(timings: list[Timing], path: Path, requests: int) -> None:
    """Print the table and write the file."""
    print(f"{'endpoint':<34}{'median ms':>10}{'p95 ms':>10}{'worst ms':>10}{'bytes':>10}")
    for row in timings:
        print(f"{row.name:<34}{row.median_ms:>10.2f}{row.p95_ms:>10.2f}{row.worst_ms:>10.2f}{row.bytes:>10}")
    path.parent.mkdir(parents=True, exist_ok=True)
    machine = {"python": platform.python_version(), "machine": platform.machine(), "system": platform.system()}
    body = {
        "points": POINTS,
        "looks": LOOKS,
        "requests": requests,
        "machine": machine,
        "rows": [vars(row) for row in timings],
    }
    path.write_text(json.dumps(body, indent=2) + "\n")
    print(f"written: {path}")


def _time(client: httpx.Client, name: str, path: str, requests: int, headers: dict[str, str] | None = None) -> Timing:
    taken, size = [], 0
    for number in range(requests + 10):
        begin = time.perf_counter()
        answer = client.get(path, headers=headers)
        spent = (time.perf_counter() - begin) * 1000
        assert answer.status_code in {200, 304}, answer.text
        size = len(answer.content)
        if number >= 10:  # the first ones fill caches of the interpreter and of SQLite
            taken.append(spent)
    return Timing(name, statistics.median(taken), statistics.quantiles(taken, n=20)[18], max(taken), size)


def _point(run_id: str, key: str, step: int, at: float) -> dict[str, Any]:
    value = (step * 7919 % 1000) / 1000
    level = metrics.level_of(step)
    return {"run_id": run_id, "key": key, "step": step, "attempt": 1, "level": level, "value": value, "at": at}


def _series(run_id: str, key: str) -> dict[str, Any]:
    return {"run_id": run_id, "key": key, "count": POINTS - 1, "first_step": 1, "last_step": POINTS - 1}


def _post(client: httpx.Client) -> str:
    answer = client.post("/runs", json=RECIPE)
    assert answer.status_code == 201, answer.text
    run_id: str = answer.json()["id"]
    return run_id


def _claim(db: Database, run_id: str) -> Fence:
    with db.write() as session:
        worker = queue.register_worker(session, hostname="bench", pid=1, device={"kind": "cpu"})
        claim = queue.claim(session, worker_id=worker, device={"kind": "cpu"}, ttl=86_400)
    assert claim is not None
    assert claim.run_id == run_id
    return claim.fence


def _evaluation(db: Database, fence: Fence, step: int, purpose: str, items: int) -> str:
    records = [
        {
            "item_id": f"item-{item}",
            "position": item,
            "prompt_sha256": "0" * 64,
            "token_ids": [1, 2, 3],
            "text": "The answer is 4.",
            "verdict": "correct" if item % 9 else "wrong",
            "finish_reason": "stop",
            "n_tokens": 3,
        }
        for item in range(items)
    ]
    with db.fenced(fence) as session:
        made = evaluations.start(
            session,
            fence,
            step=step,
            purpose=purpose,
            model_ref="smollm2-135m",
            suite="holdout",
            mode="greedy",
            n_items=items,
        )
        evaluations.add_records(session, fence, made, records)
        evaluations.finish(session, fence, made, accuracy=0.6, ci_low=0.5, ci_high=0.7, correct=0.6 * items)
    return made


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def _wait(client: httpx.Client) -> None:
    pause, deadline = threading.Event(), time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            if client.get("/healthz").status_code == 200:
                return
        except httpx.TransportError:
            pause.wait(0.05)
    raise SystemExit("the server did not start within 30 s")


if __name__ == "__main__":
    main()
