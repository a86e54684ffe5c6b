"""Health, versions and capabilities."""

from typing import Literal

from api.schemas.common import Body, Document, Time


class Health(Body):
    """The process answers. ``home_id`` is the random name of the home folder that it serves."""

    status: Literal["ok"]
    home_id: str


class Part(Body):
    """One part the service needs."""

    ok: bool
    detail: str


class Readiness(Body):
    """Whether runs can be accepted and worked on, part by part."""

    status: Literal["ready", "not_ready"]
    parts: dict[str, Part]


class Version(Body):
    """Versions of the service, its interface and what it stands on."""

    service: str
    api: str
    schema_revision: str
    python: str
    packages: dict[str, str]


class Worker(Body):
    """A worker whose heartbeat is fresh."""

    id: str
    hostname: str
    device: Document
    started_at: Time
    heartbeat_at: Time
    current_run_id: str | None


class Capabilities(Body):
    """What can be asked for here and now."""

    kinds: list[str]
    models: list[str]
    algorithms: dict[str, str]
    optimizers: dict[str, str]
    datasets: dict[str, Document]
    suites: dict[str, Document]
    verifiers: dict[str, str]
    reward_terms: list[str]
    analyses: dict[str, str]
    stop_rules: list[str]
    workers: list[Worker]
    features_missing: list[str]
