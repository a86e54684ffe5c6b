"""How the export command finds the checkpoint that is meant."""

from typing import Any

import pytest

from client.conversions import checkpoint_id
from client.errors import ClientError


class Listing:
    """A service that knows one run's checkpoints."""

    def checkpoints(self, run_id: str) -> list[dict[str, Any]]:
        assert run_id == "7f3a"
        return [{"id": "a" * 12, "step": 2}, {"id": "b" * 12, "step": 4}]


@pytest.mark.parametrize(
    ("name", "found"),
    [("run:7f3a/step-2", "a" * 12), ("7f3a/last", "b" * 12), ("run:7f3a/last", "b" * 12), ("c" * 12, "c" * 12)],
)
def test_a_checkpoint_is_named_by_run_and_step_or_by_its_id(name: str, found: str) -> None:
    assert checkpoint_id(Listing(), name) == found  # type: ignore[arg-type]


def test_a_step_that_is_not_there_is_answered_with_those_that_are() -> None:
    with pytest.raises(ClientError) as refused:
        checkpoint_id(Listing(), "run:7f3a/step-3")  # type: ignore[arg-type]
    assert refused.value.hint == "it has steps: 2, 4"


@pytest.mark.parametrize("name", ["7f3a", "run:7f3a/step-x", "../x"])
def test_what_names_no_checkpoint_is_refused(name: str) -> None:
    with pytest.raises(ClientError, match="does not name a checkpoint"):
        checkpoint_id(Listing(), name)  # type: ignore[arg-type]
