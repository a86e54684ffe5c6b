"""Fixtures of the trainer's tests."""

from pathlib import Path

import pytest

from tests.core.train.service import Service


@pytest.fixture
def service(tmp_path: Path) -> Service:
    return Service(tmp_path)
