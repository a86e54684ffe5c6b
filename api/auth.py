"""Who asks, and what they may do: bearer tokens with the scopes read, submit and admin.

Only the SHA-256 of a token is stored. Tokens are 32 random bytes, so a fast hash is right: there is nothing to guess, and
a slow one would cost every request. While no token exists the service is open to the loopback interface and to nobody
else; Host and Origin are checked besides (``origin``). Making tokens is the command line's work.
"""

import hashlib
import ipaddress
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from api.deps import Parts
from api.errors import Forbidden, Unauthorized
from core.store import tokens

SCOPES = ("read", "submit", "admin")
_CHALLENGE = {"WWW-Authenticate": 'Bearer realm="driftline"'}
_bearer = HTTPBearer(auto_error=False, description="a token with the scope read, submit or admin")


@dataclass(frozen=True)
class Caller:
    """An authenticated caller. ``id`` separates callers' idempotency keys."""

    id: str
    scope: str


def token_hash(token: str) -> str:
    """What is stored of a token: its SHA-256 in hexadecimal."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def caller_of(
    request: Request, parts: Parts, credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]
) -> Caller:
    """The caller behind a request. Raises :class:`Unauthorized`."""
    with parts.db.read() as session:
        if credentials is not None:
            token = tokens.find(session, token_hash(credentials.credentials))
            if token is None:
                raise Unauthorized("the token is not known, or was revoked", param="Authorization", headers=_CHALLENGE)
            return Caller(id=token.id, scope=token.scope)
        if tokens.any_exist(session):
            hint = "send the header Authorization: Bearer TOKEN"
            raise Unauthorized("this service asks for a token", param="Authorization", hint=hint, headers=_CHALLENGE)
    if not _is_loopback(request):
        hint = "make a token first; until then only this machine may ask"
        raise Unauthorized("this service has no tokens yet", param="Authorization", hint=hint, headers=_CHALLENGE)
    return Caller(id="local", scope="admin")


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
