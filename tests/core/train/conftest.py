"""Fixtures of the trainer's tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from core.tasks.pool import VerifierPool
from tests.core.train.service import Service


@pytest.fixture
def service(tmp_path: Path) -> Service:
    return Service(tmp_path)


@pytest.fixture(scope="session")
def pool() -> Iterator[VerifierPool]:
    with VerifierPool(workers=1) as shared:
        yield shared
