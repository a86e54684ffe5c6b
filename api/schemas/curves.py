"""Curves. Point lists are large, so the endpoint writes them itself; these models say what it writes."""

from typing import Any, Literal

from pydantic import ConfigDict, Field

from api.schemas.common import Body


class Curve(Body):
    """One key's points, thinned to a power-of-two stride that keeps the first, the last and every look."""

    points: list[list[Any]] = Field(
        description='[step, value, time]; a value that is not finite is [step, null, time, "nan"|"inf"|"-inf"]'
    )
    total: int
    shown: int
    unit: str
    help: str


class Mark(Body):
    """Something that happened at a step."""

    model_config = ConfigDict(extra="allow")

    kind: Literal["look", "checkpoint", "jump", "attempt", "skip"]
    step: int


class Curves(Body):
    """All asked curves of a run."""

    run_id: str
    attempt: int | Literal["current"]
    curves: dict[str, Curve]
    marks: list[Mark]
