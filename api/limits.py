"""A limit on the bytes of a request body, counted as they arrive and before anything parses them.

Pure ASGI, because a check of Content-Length alone is bypassed by chunked encoding, and a framework that has already
buffered the body has already lost. It knows nothing about routes or tokens.
"""

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.errors import PayloadTooLarge


class BodyLimit:
    """Refuse bodies above ``max_bytes`` with 413, whether their length was declared or not."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self.app = app
        self.max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on with a counting ``receive``."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if _declared_length(scope) > self.max_bytes:
            await self._refuse(scope, receive, send)
            return
        seen = 0
        started = False

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            if message["type"] == "http.request":
                seen += len(message.get("body", b""))
                if seen > self.max_bytes:
                    raise _TooLarge
            return message

        async def watched(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self.app(scope, counted, watched)
        except _TooLarge:
            if started:
                raise
            await self._refuse(scope, receive, send)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        error = PayloadTooLarge(
            f"the body is larger than {self.max_bytes} bytes",
            hint="recipes are small; the operator can raise DRIFTLINE_MAX_BODY_BYTES",
            # The rest of the body is not read, so the connection cannot carry another request.
            headers={"Connection": "close"},
        )
        await JSONResponse(error.body(), error.status, error.headers)(scope, receive, send)


class _TooLarge(BaseException):
    """Carries the verdict out through the framework, which turns every ``Exception`` of a body read into a 400."""


def _declared_length(scope: Scope) -> int:
    for name, value in scope["headers"]:
        if name == b"content-length":
            return int(value) if value.isdigit() and len(value) < 19 else 1 << 62
    return 0
