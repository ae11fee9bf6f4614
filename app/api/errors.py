"""Exception handlers: convert what routes raise to error responses.

Messages are sentences for the caller. Details of internal errors are only in the log, under the request id that the
response names.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from app.error_format import error_response, is_openai_path
from app.errors import AppError, TooManyRequests


def install_error_handlers(app: FastAPI) -> None:
    """Registers the handlers. :mod:`app.api.request_middleware` handles unexpected exceptions."""
    app.add_exception_handler(RequestValidationError, invalid_request)

    @app.exception_handler(AppError)
    async def app_error(request: Request, error: AppError) -> JSONResponse:
        retry = {"Retry-After": "1"} if error.status == 503 else None
        if isinstance(error, TooManyRequests):
            retry = {"Retry-After": str(error.retry_after)}
        return error_response(request.url.path, error.status, error.code, error.message, headers=retry)

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> JSONResponse:
        code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "bad_request")
        return error_response(request.url.path, error.status_code, code, str(error.detail), headers=error.headers)


async def invalid_request(request: Request, error: Exception) -> JSONResponse:
    """Handles ``RequestValidationError``: says which field is not valid, without repeating it."""
    assert isinstance(error, RequestValidationError)
    status = 400 if is_openai_path(request.url.path) else 422
    message, field = describe_invalid(error.errors())
    return error_response(request.url.path, status, "invalid_input", message, param=field)


#: Prefix of the tags of discriminated request bodies. Pydantic puts the tags into error paths; callers don't know them.
UNION_TAG = "tag:"
#: Maximum characters of a field's path in a message; the rest is cut off.
MAX_PATH_LENGTH = 200


def describe_invalid(errors: Sequence[Any]) -> tuple[str, str | None]:
    """Converts the first of Pydantic's errors to a sentence, and returns it with the path of its field, if any."""
    first = errors[0]
    if first["type"] == "json_invalid":
        return "The body is not valid JSON.", None
    path = [part for part in first["loc"] if part not in ("body", "query", "path", "header") and not _is_tag(part)]
    if first["type"] == "unsupported_parameter":  # see app.api.openai.fields.unsupported
        param = first["ctx"]["param"]
        if path and path[-1] == param.partition("[")[0].partition(".")[0]:
            path.pop()  # the field's own validator raised it, and named the field again
        path.append(param)
    field = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")
    if first["type"] == "unsupported_parameter":
        return str(first["ctx"]["sentence"]).replace("{param}", field[:MAX_PATH_LENGTH]), field
    if not field:
        return f"The request is not valid: {first['msg']}.", None
    if first["type"] == "missing":
        return f"The field '{field}' is missing.", field
    if first["type"] == "extra_forbidden":
        return f"Unknown field '{field}'. Leave it out.", field
    reason = str(first["msg"]).removeprefix("Value error, ").rstrip(".")
    return f"The field '{field}' is not valid: {reason}.", field


def _is_tag(part: object) -> bool:
    return isinstance(part, str) and part.startswith(UNION_TAG)
