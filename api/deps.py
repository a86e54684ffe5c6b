"""What endpoints are given: the service's parts, parameter types, and the check that refuses unknown query parameters.

There is deliberately no dependency that yields a session. Dependencies and endpoints run in different turns of one thread
pool: a request that waits in a dependency for the database's writer lock would hold the thread its owner needs to go on.
An endpoint opens ``db.read()`` or ``db.write()`` itself, calls services inside, and leaves: one thread from begin to commit.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated

from fastapi import Depends, Path, Query, Request
from fastapi.dependencies.utils import get_flat_params
from fastapi.params import ParamTypes
from fastapi.routing import APIRoute

from api.errors import InvalidRequest
from api.services.damage import Answers
from core.settings import Settings
from core.store.database import Database

# Cursors, steps and numbers beyond this are held exactly by no JSON reader, and by no database column.
MAX_INTEGER = 2**53 - 1


@dataclass(frozen=True)
class Service:
    """The parts of the running service. ``ring`` tells the workers that the outbox has something.

    ``home_id`` is empty until the application starts: making it opens the home folder.
    """

    settings: Settings
    db: Database
    ring: Callable[[], None]
    home_id: str = ""
    damage_answers: Answers = field(default_factory=Answers)


def service_of(request: Request) -> Service:
    """The parts that :func:`api.app.create_app` put together."""
    service: Service = request.app.state.service
    return service


Parts = Annotated[Service, Depends(service_of)]

RunId = Annotated[
    str,
    Path(
        alias="id",
        pattern="^[0-9a-f]{1,12}$",
        description="id of a run, or an unambiguous beginning of it",
    ),
]
HexId = Annotated[str, Path(pattern="^[0-9a-f]{12}$", description="id, 12 hexadecimal characters")]
FullId = Annotated[str, Path(alias="id", pattern="^[0-9a-f]{12}$", description="id, 12 hexadecimal characters")]
FileName = Annotated[str, Path(min_length=1, max_length=255, description="name as the listing gives it; never a path")]
After = Annotated[str | None, Query(max_length=200, description="the `next` of the page before")]
Limit = Annotated[int, Query(ge=1, le=1000, description="rows on a page")]
Step = Annotated[int | None, Query(ge=0, le=MAX_INTEGER)]


async def raw_body(request: Request) -> bytes:
    """The body's bytes, read after authentication and parsed by nobody before the endpoint."""
    return await request.body()


RawBody = Annotated[bytes, Depends(raw_body)]


async def known_query_only(request: Request) -> None:
    """Refuse query parameters that the endpoint does not declare, repeated ones, and NUL in any of them.

    An idempotency key given twice is refused here too: whichever of the two counted, the client may mean the other.
    """
    if len(request.headers.getlist("Idempotency-Key")) > 1:
        raise InvalidRequest("the header Idempotency-Key is given twice", param="Idempotency-Key", hint="give it once")
    route = request.scope["route"]
    assert isinstance(route, APIRoute)
    allowed = _declared(route)
    seen: set[str] = set()
    for name, value in request.query_params.multi_items():
        if name not in allowed:
            hint = f"allowed: {', '.join(sorted(allowed))}" if allowed else "this endpoint takes none"
            raise InvalidRequest(
                f"unknown query parameter {name[:80]!r}", param=name[:80], hint=hint, code="unknown_parameter"
            )
        if name in seen:
            raise InvalidRequest(f"the query parameter {name} is given twice", param=name, hint="give it once")
        if "\x00" in value:
            raise InvalidRequest(f"the query parameter {name} holds NUL", param=name)
        seen.add(name)


def _declared(route: APIRoute) -> frozenset[str]:
    return frozenset(
        field.alias
        for field in get_flat_params(route.dependant)
        if getattr(field.field_info, "in_", None) == ParamTypes.query
    )
