"""Fixtures for the whole suite: the real small model. Everything else is built in memory where it is needed."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def smollm2_dir() -> Path:
    """Folder of the dequantised SmolLM2-135M-Instruct under DRIFTLINE_HOME, prepared on first use (about 40 s).

    A missing GGUF fails the test: a suite that silently skips its only real model would say nothing about engines.
    """
    from core.engines.base import EngineError
    from core.engines.smollm2 import prepare
    from core.settings import Settings

    try:
        return prepare(Settings.from_env().smollm2_dir)
    except EngineError as error:
        pytest.fail(f"the real model is not there, run `make setup`: {error}")
