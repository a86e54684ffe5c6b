"""Errors as values: every refusal has a status, a stable code, a message, the field it is about and a hint.

The classes carry their status and appear in the OpenAPI document through :func:`documented`. Nothing here decides when an
error is due; endpoints, services and middleware raise or send them.
"""

# ruff: noqa: N818 - the names say what happened; "Error" would add nothing

import logging
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.dependencies.utils import get_flat_params
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy.exc import OperationalError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from core.recipes import RecipeError
from core.store.errors import Ambiguous, BadCursor, BadFilter, IllegalTransition, RecordsDeleted, StoreError
from core.store.errors import NotFound as RowNotFound

log = logging.getLogger("driftline.api")


class ErrorDetail(BaseModel):
    """One refusal in four parts."""

    model_config = ConfigDict(extra="forbid")

    code: str = Field(description="stable identifier a program can branch on", examples=["not_found"])
    message: str = Field(description="what is wrong, for a person")
    param: str | None = Field(description="the field, parameter or header it is about")
    hint: str | None = Field(description="how to mend it")


class ErrorBody(BaseModel):
    """The body of every answer with a status of 400 or more."""

    model_config = ConfigDict(extra="forbid")

    error: ErrorDetail


class ApiError(Exception):
    """A refusal that is sent to the client as it stands. Subclasses fix the status and the usual code."""

    status = 500
    code = "internal"

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        hint: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.hint = hint
        self.code = code or type(self).code
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        """The JSON document of the contract."""
        return error_body(self.code, self.message, self.param, self.hint)


class Unauthorized(ApiError):
    """No valid token, where one is needed."""

    status, code = 401, "unauthorized"


class Forbidden(ApiError):
    """The token's scope is too small, or the request comes from a web page or a host name that is not ours."""

    status, code = 403, "forbidden"


class NotFound(ApiError):
    """The named thing does not exist."""

    status, code = 404, "not_found"


class Conflict(ApiError):
    """The request contradicts the present state."""

    status, code = 409, "conflict"


class Gone(ApiError):
    """The row is there, its file is not."""

    status, code = 410, "gone"


class PayloadTooLarge(ApiError):
    """The body has more bytes than the operator allows."""

    status, code = 413, "payload_too_large"


class UnsupportedMediaType(ApiError):
    """The body is not declared as application/json."""

    status, code = 415, "unsupported_media_type"


class RangeNotSatisfiable(ApiError):
    """The Range header asks for bytes beyond the end."""

    status, code = 416, "range_not_satisfiable"


class InvalidRequest(ApiError):
    """A parameter, a body or a recipe cannot be used."""

    status, code = 422, "invalid_request"


class Unavailable(ApiError):
    """A part of the service cannot answer now; the same request may succeed later."""

    status, code = 503, "unavailable"


_KINDS: tuple[type[ApiError], ...] = (
    Unauthorized, Forbidden, NotFound, Conflict, Gone, PayloadTooLarge, UnsupportedMediaType, RangeNotSatisfiable,
    InvalidRequest, Unavailable,
)  # fmt: skip
_BY_STATUS = {kind.status: kind for kind in _KINDS}
_EVERYWHERE = (401, 403, 422, 503)


def documented(*statuses: int, answers: Mapping[int, dict[str, Any]] | None = None) -> dict[int | str, dict[str, Any]]:
    """The ``responses=`` of an endpoint: its own ``answers``, the errors any endpoint can give, and ``statuses`` besides."""
    refusals: dict[int | str, dict[str, Any]] = {
        status: {"model": ErrorBody, "description": (_BY_STATUS[status].__doc__ or "").strip()}
        for status in sorted({*_EVERYWHERE, *statuses})
    }
    return refusals | dict(answers or {})


def error_body(code: str, message: str, param: str | None = None, hint: str | None = None) -> dict[str, Any]:
    """The JSON document of an error."""
    return {"error": {"code": code, "message": message, "param": param, "hint": hint}}


def install(app: FastAPI) -> None:
    """Answer every exception of the application with the contract's error document."""
    app.add_exception_handler(ApiError, _api_error)
    app.add_exception_handler(RecipeError, _recipe_error)
    app.add_exception_handler(StoreError, _store_error)
    app.add_exception_handler(OperationalError, _database_error)
    app.add_exception_handler(RequestValidationError, _request_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _internal_error)


async def _api_error(_request: Request, exc: Exception) -> JSONResponse:
    assert isinstance(exc, ApiError)
    return JSONResponse(exc.body(), exc.status, exc.headers)


async def _recipe_error(_request: Request, exc: Exception) -> JSONResponse:
    assert isinstance(exc, RecipeError)
    others = [problem.param for problem in exc.problems[1:]]
    message = exc.message
    if others:
        message += f" ({len(others)} more: {', '.join(str(name) for name in others[:8])})"
    return JSONResponse(error_body("invalid_recipe", message, exc.param, exc.hint), InvalidRequest.status)


async def _store_error(_request: Request, exc: Exception) -> JSONResponse:
    match exc:
        case RowNotFound():
            error: ApiError = NotFound(str(exc), param="id")
        case RecordsDeleted():
            error = Gone(str(exc), param="id", code="deleted", hint="GET /evals/{id} tells what was found")
        case Ambiguous():
            error = InvalidRequest(str(exc), param="id", code="ambiguous_id", hint="give more characters of the id")
        case IllegalTransition():
            error = Conflict(str(exc), code="illegal_transition", hint="GET /runs/{id} shows the present state")
        case BadCursor():
            error = InvalidRequest(str(exc), param="after", code="bad_cursor", hint="use the `next` of the page before")
        case BadFilter():
            error = InvalidRequest(str(exc), code="bad_filter")
        case _:
            return await _internal_error(_request, exc)
    return JSONResponse(error.body(), error.status)


async def _database_error(_request: Request, exc: Exception) -> JSONResponse:
    log.error("the database refused: %s", exc)
    error = Unavailable(
        "the database cannot answer now", code="database_unavailable", hint="try again in a few seconds"
    )
    return JSONResponse(error.body(), error.status, {"Retry-After": "5"})


async def _request_error(request: Request, exc: Exception) -> JSONResponse:
    assert isinstance(exc, RequestValidationError)
    first = exc.errors()[0]
    where, *path = [str(part) for part in first["loc"]]
    param = ".".join(path) or where
    allowed = first.get("ctx", {}).get("expected") or _description(request, param)
    hint = f"allowed: {allowed}" if allowed else None
    message = f"{where} parameter {param}: {first['msg']}"
    return JSONResponse(error_body("invalid_request", message, param, hint), InvalidRequest.status)


def _description(request: Request, param: str) -> str | None:
    """What the endpoint's document says of a parameter."""
    route = request.scope.get("route")
    declared = get_flat_params(route.dependant) if isinstance(route, APIRoute) else []
    return next((field.field_info.description for field in declared if field.alias == param), None)


async def _http_error(_request: Request, exc: Exception) -> JSONResponse:
    assert isinstance(exc, HTTPException)
    code = {404: "not_found", 405: "method_not_allowed"}.get(exc.status_code, "bad_request")
    hint = "GET /openapi.json lists every path and method" if exc.status_code in {404, 405} else None
    return JSONResponse(error_body(code, exc.detail, None, hint), exc.status_code, exc.headers)


async def _internal_error(request: Request, exc: Exception) -> JSONResponse:
    log.error("%s %s failed", request.method, request.url.path, exc_info=exc)
    message = "the service failed to answer; its log has the details"
    return JSONResponse(error_body("internal", message), ApiError.status)
