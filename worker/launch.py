"""Starting a worker as a child process, and carrying settings to processes by their environment variables."""

import os
import subprocess
import sys
from pathlib import Path

from core.settings import Settings


def settings_environment(settings: Settings) -> dict[str, str]:
    """The variables from which ``Settings.from_env`` makes ``settings`` again."""
    values: dict[str, object | None] = {
        "DRIFTLINE_HOME": settings.home,
        "DRIFTLINE_DATABASE_URL": settings.database_url,
        "DRIFTLINE_BROKER_URL": settings.broker_url,
        "DRIFTLINE_GPU": settings.gpu,
        "DRIFTLINE_DATA": settings.data_dir,
        "DRIFTLINE_MODELS": settings.models_dir,
        "DRIFTLINE_REWARDS": settings.rewards_dir,
        "DRIFTLINE_HOST": settings.host,
        "DRIFTLINE_PORT": settings.port,
        "DRIFTLINE_LEASE_TTL_S": settings.lease_ttl_s,
        "DRIFTLINE_HEARTBEAT_S": settings.heartbeat_s,
        "DRIFTLINE_SWEEP_S": settings.sweep_s,
        "DRIFTLINE_MAX_BODY_BYTES": settings.max_body_bytes,
    }
    return {name: "" if value is None else str(value) for name, value in values.items()}


def start_worker(settings: Settings, log_file: Path) -> "subprocess.Popen[bytes]":
    """Start ``python -m worker`` as a child whose output is appended to ``log_file``.

    Send it SIGTERM to stop it: it lets its runner reach a checkpoint first. It also drains when this process dies. It has a
    session of its own, so a Ctrl-C in the terminal reaches it through this process alone.
    """
    log_file.parent.mkdir(parents=True, exist_ok=True)
    root = str(Path(__file__).resolve().parents[1])
    path = os.pathsep.join(part for part in (root, os.environ.get("PYTHONPATH", "")) if part)
    env = {**os.environ, **settings_environment(settings), "PYTHONPATH": path}
    with log_file.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "worker", "--follow-parent"],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
