"""The operator's settings, read once from environment variables; no recipe can change them.

It holds values and paths only. It opens nothing, creates no folder and knows no other part of the service.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


class SettingsError(ValueError):
    """An environment variable holds a value that cannot be used; the message names it and says what is allowed."""


@dataclass(frozen=True)
class Settings:
    """Where things are and how patient the service is. All times are seconds."""

    home: Path
    database_url: str
    broker_url: str
    gpu: str = "cpu"
    data_dir: Path | None = None
    models_dir: Path | None = None
    rewards_dir: Path | None = None
    host: str = "127.0.0.1"
    port: int = 8421
    lease_ttl_s: float = 120.0
    heartbeat_s: float = 30.0
    sweep_s: float = 15.0
    max_body_bytes: int = 4 * 1024 * 1024

    @classmethod
    def from_env(cls, env: Mapping[str, str] = os.environ) -> "Settings":
        """Read ``DRIFTLINE_*`` variables; raises :class:`SettingsError` naming the first that cannot be used.

        An empty variable is as good as none.
        """
        home = Path(env.get("DRIFTLINE_HOME") or ".driftline").expanduser().resolve()
        settings = cls(
            home=home,
            database_url=env.get("DRIFTLINE_DATABASE_URL") or f"sqlite:///{home / 'driftline.db'}",
            broker_url=env.get("DRIFTLINE_BROKER_URL") or "redis://127.0.0.1:6390/0",
            gpu=env.get("DRIFTLINE_GPU") or "cpu",
            data_dir=_folder(env, "DRIFTLINE_DATA"),
            models_dir=_folder(env, "DRIFTLINE_MODELS"),
            rewards_dir=_folder(env, "DRIFTLINE_REWARDS"),
            host=env.get("DRIFTLINE_HOST") or "127.0.0.1",
            port=int(_positive(env, "DRIFTLINE_PORT", 8421)),
            lease_ttl_s=_positive(env, "DRIFTLINE_LEASE_TTL_S", 120.0),
            heartbeat_s=_positive(env, "DRIFTLINE_HEARTBEAT_S", 30.0),
            sweep_s=_positive(env, "DRIFTLINE_SWEEP_S", 15.0),
            max_body_bytes=int(_positive(env, "DRIFTLINE_MAX_BODY_BYTES", 4 * 1024 * 1024)),
        )
        if settings.heartbeat_s * 2 > settings.lease_ttl_s:
            raise SettingsError(
                f"DRIFTLINE_HEARTBEAT_S is {settings.heartbeat_s:g} and DRIFTLINE_LEASE_TTL_S {settings.lease_ttl_s:g}: "
                "a lease must outlast two heartbeats; raise the lease or lower the heartbeat"
            )
        return settings

    def run_dir(self, run_id: str) -> Path:
        """Folder of one run's checkpoints and logs."""
        return self.home / "runs" / run_id

    def checkpoint_dir(self, run_id: str, attempt: int, step: int) -> Path:
        """Folder of one checkpoint; it carries the attempt, so a stale runner can never write into a newer one's files."""
        return self.run_dir(run_id) / "checkpoints" / f"attempt-{attempt}-step-{step}"

    def log_file(self, run_id: str, attempt: int) -> Path:
        """File that receives the standard output and error of one attempt's runner."""
        return self.run_dir(run_id) / "logs" / f"attempt-{attempt}.log"

    def analysis_dir(self, analysis_id: str) -> Path:
        """Folder of one analysis' large results and figures."""
        return self.home / "analyses" / analysis_id

    @property
    def smollm2_dir(self) -> Path:
        """Folder of the dequantised SmolLM2-135M-Instruct."""
        return self.home / "models" / "smollm2-135m"

    @property
    def locks_dir(self) -> Path:
        """Folder of the lock files that keep two runners off one card and one run."""
        return self.home / "locks"


def _folder(env: Mapping[str, str], name: str) -> Path | None:
    value = env.get(name, "")
    if not value:
        return None
    path = Path(value).expanduser().resolve()
    if not path.is_dir():
        raise SettingsError(f"{name} names {path}, which is not a folder; correct it or unset the variable")
    return path


def _positive(env: Mapping[str, str], name: str, default: float) -> float:
    raw = env.get(name, "")
    if not raw:
        return float(default)
    try:
        value = float(raw)
    except ValueError:
        raise SettingsError(f"{name} is {raw!r}, which is not a number") from None
    if not 0 < value < float("inf"):
        raise SettingsError(f"{name} is {raw}, but it must be positive and finite")
    return value
