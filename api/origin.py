"""Keeps web pages from using the service through a visitor's browser: Host, Origin and Content-Type are checked first.

A page can send requests to a loopback port without any token. Three facts stop it: a rebound DNS name shows in ``Host``,
every browser names the page in ``Origin`` or ``Sec-Fetch-Site`` when it writes, and no page can send
``application/json`` to another origin without a preflight, which is never granted. Pure ASGI; it knows no routes.
"""

import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.errors import ApiError, Forbidden, UnsupportedMediaType

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
_WILDCARDS = frozenset({"", "0.0.0.0", "::"})  # noqa: S104 - names to compare with, nothing is bound here
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_NO_HOST = re.compile(r"[@/\\?#\s]")
_POLICY = "default-src 'none'; frame-ancestors 'none'"


class SameOriginOnly:
    """Refuse foreign hosts (403), writes started by other origins (403) and bodies that are not JSON (415)."""

    def __init__(self, app: ASGIApp, host: str) -> None:
        self.app = app
        # Bound to every interface the service has no one name; then only tokens protect it, and tokens are demanded.
        self.names = None if host in _WILDCARDS else LOOPBACK_NAMES | {host.lower()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check the headers, then pass the request on; every answer gets the headers that keep browsers careful."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *_missing_headers(message["headers"])]
            await send(message)

        error = self._verdict(scope["method"], Headers(scope=scope))
        if error is None:
            await self.app(scope, receive, guarded)
        else:
            await JSONResponse(error.body(), error.status)(scope, receive, guarded)

    def _verdict(self, method: str, headers: Headers) -> ApiError | None:
        if len(headers.getlist("host")) > 1:
            return Forbidden("the Host header is given twice", param="Host", code="forbidden_host", hint="give it once")
        host = headers.get("host", "")
        if self.names is not None and host_name(host) not in self.names:
            return Forbidden(
                "the Host header names a machine that this service is not",
                param="Host",
                code="forbidden_host",
                hint="use localhost, 127.0.0.1 or the address in DRIFTLINE_HOST",
            )
        if method in _SAFE_METHODS:
            return None
        return _foreign_page(headers, host) or _not_json(headers)


def host_name(host: str) -> str:
    """The name in a Host header, in lower case, without port and brackets; empty when it is malformed.

    A Host header is a name and perhaps a port: user names, paths and white space, which only a URL may have, are malformed.
    """
    if _NO_HOST.search(host):
        return ""
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""


def _foreign_page(headers: Mapping[str, str], host: str) -> ApiError | None:
    origin = headers.get("origin")
    site = headers.get("sec-fetch-site", "none")
    # "same-site" is refused too: another port of localhost is the same site and somebody else's page.
    foreign = (origin is not None and _netloc(origin) != host.lower()) or site not in {"none", "same-origin"}
    if not foreign:
        return None
    return Forbidden(
        "a web page of another origin may not change anything here",
        param="Origin",
        code="forbidden_origin",
        hint="use the page at /, the command line or a client that is not a browser",
    )


def _netloc(origin: str) -> str:
    """Host and port of an origin such as ``http://127.0.0.1:8421``; empty for ``null`` and malformed ones."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def _not_json(headers: Mapping[str, str]) -> ApiError | None:
    kind = headers.get("content-type")
    has_body = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
    if kind is None and not has_body:
        return None
    if kind is not None and kind.split(";")[0].strip().lower() == "application/json":
        return None
    return UnsupportedMediaType(
        "a body must be sent as application/json",
        param="Content-Type",
        hint="add the header Content-Type: application/json",
    )


def _missing_headers(present: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    names = {name.lower() for name, _ in present}
    wanted = [
        (b"x-content-type-options", b"nosniff"),
        (b"cache-control", b"no-store"),
        (b"content-security-policy", _POLICY.encode()),
        (b"referrer-policy", b"no-referrer"),
    ]
    return [(name, value) for name, value in wanted if name not in names]
