"""Shapes that several resources share: times, intervals, pages."""

from typing import Annotated, Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field

Time = Annotated[str, Field(json_schema_extra={"format": "date-time"}, examples=["2026-01-31T12:00:00.250Z"])]
Interval = Annotated[list[float | None], Field(min_length=2, max_length=2, description="[low, high], 95 %")]
Document = dict[str, Any]

T = TypeVar("T")


class Body(BaseModel):
    """Base of everything that is sent: no field beyond the declared ones."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())


class Listing(Body, Generic[T]):
    """One page. Ask again with ``after`` set to ``next``; pages do not shift when rows are added."""

    data: list[T]
    has_more: bool
    next: str | None = Field(description="cursor for `after`; null when there is nothing to come back for")
