"""Who asks, and what they may do: bearer tokens with the scopes read, submit and admin.

While no token exists the service is open to the loopback interface and to nobody else; Host and Origin are checked
besides (``origin``). Making and revoking tokens is the command line's work, on the database itself: no request can do it.
"""

import ipaddress
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from sqlalchemy.exc import SQLAlchemyError

from api.deps import Parts, Service
from api.errors import Forbidden, Unauthorized
from core.store import tokens
from core.store.bearer import SCOPES, token_hash

log = logging.getLogger("driftline.api")

_CHALLENGE = {"WWW-Authenticate": 'Bearer realm="driftline"'}
_bearer = HTTPBearer(auto_error=False, description="a token with the scope read, submit or admin")


@dataclass(frozen=True)
class Caller:
    """An authenticated caller. ``id`` separates callers' idempotency keys."""

    id: str
    scope: str


def caller_of(
    request: Request, parts: Parts, credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]
) -> Caller:
    """The caller behind a request. Raises :class:`Unauthorized`."""
    if credentials is not None:
        return _bearer_of(parts, credentials.credentials)
    with parts.db.read() as session:
        if tokens.any_exist(session):
            hint = "send the header Authorization: Bearer TOKEN"
            raise Unauthorized("this service asks for a token", param="Authorization", hint=hint, headers=_CHALLENGE)
    if not _is_loopback(request):
        hint = "make a token first; until then only this machine may ask"
        raise Unauthorized("this service has no tokens yet", param="Authorization", hint=hint, headers=_CHALLENGE)
    return Caller(id="local", scope="admin")


def _bearer_of(parts: Service, secret: str) -> Caller:
    with parts.db.read() as session:
        token = tokens.find(session, token_hash(secret))
        if token is None:
            raise Unauthorized("the token is not known, or was revoked", param="Authorization", headers=_CHALLENGE)
        due = tokens.touch_is_due(session, token)
    if due:
        try:
            with parts.db.write() as session:
                tokens.touch(session, token.id)
        except SQLAlchemyError:
            log.exception("the use of the token %s could not be recorded; the request goes on", token.name)
    return Caller(id=token.id, scope=token.scope)


def _is_loopback(request: Request) -> bool:
    if request.client is None:
        return True  # a Unix socket, which file permissions guard
    try:
        return ipaddress.ip_address(request.client.host).is_loopback
    except ValueError:
        return False


def require(scope: str) -> Callable[[Caller], Caller]:
    """A dependency that lets through callers whose scope is ``scope`` or a larger one."""

    def check(caller: Annotated[Caller, Depends(caller_of)]) -> Caller:
        if SCOPES.index(caller.scope) < SCOPES.index(scope):
            hint = f"use a token with the scope {scope}"
            raise Forbidden(
                f"the token's scope is {caller.scope}; this needs {scope}", param="Authorization", hint=hint
            )
        return caller

    return check


Reader = Annotated[Caller, Depends(require("read"))]
Submitter = Annotated[Caller, Depends(require("submit"))]
Admin = Annotated[Caller, Depends(require("admin"))]
