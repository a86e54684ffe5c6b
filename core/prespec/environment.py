"""The amendment ``environment`` of a prespecification: what only the first attempt can know, and how others find it.

Plain JSON in and out; who appends it, and what a difference means, is decided by the jobs.
"""

from collections.abc import Mapping, Sequence
from typing import Any

ENVIRONMENT = "environment"
TRAIN = "training"
HELDOUT = "held-out"
"""Names of the two parts of the amendment's ``data``."""


def environment_of(amendments: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return the payload of the first ``environment`` among stored amendments, None before there is one."""
    return next((one["payload"] for one in amendments if one["payload"].get("kind") == ENVIRONMENT), None)


def changed_items(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Name the parts of the data and the suites whose items in ``after`` are not those of ``before``."""
    was, now = _hashes(before), _hashes(after)
    return [name for name in now if was.get(name) != now[name]]


def _hashes(environment: Mapping[str, Any]) -> dict[str, str]:
    suites = {f"suite {name}": facts["sha256"] for name, facts in environment["suites"].items()}
    return {name: facts["sha256"] for name, facts in environment["data"].items()} | suites
