"""Settings travel to child processes by their environment; a worker that cannot start says why."""

import subprocess
import sys
from dataclasses import replace

from core.settings import Settings
from worker.launch import settings_environment


def test_settings_survive_the_environment(settings, tmp_path):
    full = replace(settings, data_dir=tmp_path, models_dir=tmp_path, rewards_dir=tmp_path, port=9000, max_body_bytes=7)

    for before in (settings, full):
        assert Settings.from_env(settings_environment(before)) == before


def start(settings):
    return subprocess.run(
        [sys.executable, "-m", "worker"],
        env=settings_environment(settings),
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_worker_refuses_a_card_that_is_not_there(settings):
    refusal = start(replace(settings, gpu="NVIDIA GeForce RTX 0000"))

    assert refusal.returncode == 2
    assert "Traceback" not in refusal.stderr
    assert "DRIFTLINE_GPU" in refusal.stderr


def test_a_worker_refuses_a_database_without_its_schema(settings, tmp_path):
    refusal = start(replace(settings, database_url=f"sqlite:///{tmp_path / 'empty.db'}"))

    assert refusal.returncode == 2
    assert "migrate" in refusal.stderr
