"""What can go wrong between a user and the service, as exceptions that carry the service's own words.

Each class fixes the exit status that the command line ends with. Nothing here prints.
"""

from typing import Any, ClassVar


class ClientError(Exception):
    """Base of everything this package raises on purpose: a sentence, the field it is about, and how to mend it."""

    exit_status: ClassVar[int] = 1

    def __init__(
        self, message: str, *, param: str | None = None, hint: str | None = None, code: str = "client"
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.hint = hint
        self.code = code

    def body(self) -> dict[str, Any]:
        """The error as the service's error document, for ``--json``."""
        return {"error": {"code": self.code, "message": self.message, "param": self.param, "hint": self.hint}}


class NotReachable(ClientError):  # noqa: N818 - the name says what happened; "Error" would add nothing
    """Nobody answers at the service's address, or what answers is not a Driftline."""

    exit_status = 6


class ServiceError(ClientError):
    """The service refused the request or failed to answer it; ``status`` is the HTTP status."""

    def __init__(self, status: int, message: str, *, param: str | None, hint: str | None, code: str) -> None:
        super().__init__(message, param=param, hint=hint, code=code)
        self.status = status


class Refused(ServiceError):  # noqa: N818
    """422: a recipe, a parameter or an id cannot be used."""

    exit_status = 5


class AuthRefused(ServiceError):  # noqa: N818
    """401 or 403: a token is missing, unknown, or too weak."""


class NotFound(ServiceError):  # noqa: N818
    """404: there is no such thing."""


class Conflict(ServiceError):  # noqa: N818
    """409: the request contradicts the present state."""


class ServiceFailed(ServiceError):  # noqa: N818
    """5xx: the service cannot answer now, or failed."""


class StartError(ClientError):
    """The service cannot be started or stopped on this machine."""


def from_answer(status: int, body: Any) -> ServiceError:
    """The exception for an answer of 400 or more. ``body`` is the decoded document, or None when it was not JSON."""
    detail = body.get("error") if isinstance(body, dict) else None
    if not isinstance(detail, dict):
        detail = {"code": "unreadable", "message": f"the service answered {status} without an error document"}
    kind: type[ServiceError]
    match status:
        case 401 | 403:
            kind = AuthRefused
        case 404:
            kind = NotFound
        case 409:
            kind = Conflict
        case 422:
            kind = Refused
        case _:
            kind = ServiceFailed if status >= 500 else ServiceError
    return kind(
        status,
        str(detail.get("message") or f"the service answered {status}"),
        param=detail.get("param"),
        hint=detail.get("hint"),
        code=str(detail.get("code") or "unreadable"),
    )
