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

from app.api.field_errors import requirement_of, union_members
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
        message = _unreadable_body(error.__cause__) or str(error.detail)
        return error_response(request.url.path, error.status_code, code, message, headers=error.headers)


def _unreadable_body(cause: BaseException | None) -> str | None:
    """Says why FastAPI could not read a body, of which its own sentence tells nothing."""
    match cause:
        case RecursionError():
            return "The body is nested too deep. Flatten it."
        case UnicodeDecodeError():
            return "The body is not valid UTF-8."
        case ValueError():
            return "The body holds a number with too many digits."
        case _:
            return None


async def invalid_request(request: Request, error: Exception) -> JSONResponse:
    """Handles ``RequestValidationError``: says which field is not valid, without repeating it."""
    assert isinstance(error, RequestValidationError)
    describe, status = (describe_in_v1, 400) if is_openai_path(request.url.path) else (describe_invalid, 422)
    message, field = describe(error.errors())
    return error_response(request.url.path, status, "invalid_input", message, param=field)


#: Prefix of the tags of discriminated request bodies. Pydantic puts the tags into error paths; callers don't know them.
UNION_TAG = "tag:"
#: Maximum characters of a field's path in a message; the rest is cut off.
MAX_PATH_LENGTH = 200


def describe_invalid(errors: Sequence[Any]) -> tuple[str, str | None]:
    """Converts the first of Pydantic's errors to a sentence, and returns it with the path of its field, if any.

    The page replaces the field's name, and the reason, by words of its own.
    """
    first = errors[0]
    field = _path_of(first)
    sentence = _general_sentence(first, field)
    if sentence is not None:
        return sentence
    if not field:
        return f"The request is not valid: {first['msg']}.", None
    reason = str(first["msg"]).removeprefix("Value error, ").rstrip(".")
    return f"The field '{field}' is not valid: {reason}.", field


def describe_in_v1(errors: Sequence[Any]) -> tuple[str, str | None]:
    """As :func:`describe_invalid`, for programs: the sentence is complete, and none of Pydantic's."""
    first = errors[0]
    members = union_members(errors)
    field = _path_of({**first, "loc": first["loc"][:-1]} if members else first)
    sentence = _general_sentence(first, field)
    if sentence is not None:
        return sentence
    if first["type"] == "value_error":  # ours, which begins with the name of the field
        message = str(first["msg"]).removeprefix("Value error, ").rstrip(".")
        return f"{message}.", field or message.partition(" ")[0]
    requirement = f"must be {members}" if members else requirement_of(first)
    return (f"The field '{field}' {requirement}.", field) if field else (f"The body {requirement}.", None)


def _path_of(error: Any) -> str:
    path = [part for part in error["loc"] if part not in ("body", "query", "path", "header") and not _is_tag(part)]
    if error["type"] == "unsupported_parameter":  # see app.api.openai.fields.unsupported
        param = error["ctx"]["param"]
        if path and path[-1] == param.partition("[")[0].partition(".")[0]:
            path.pop()  # the field's own validator raised it, and named the field again
        path.append(param)
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")


def _general_sentence(error: Any, field: str) -> tuple[str, str | None] | None:
    """Returns the sentence and the path of an error that is the same to the page and to programs."""
    match error["type"]:
        case "json_invalid":
            return "The body is not valid JSON.", None
        case "unsupported_parameter":
            return str(error["ctx"]["sentence"]).replace("{param}", field[:MAX_PATH_LENGTH]), field
        case "missing" if field:
            return f"The field '{field}' is missing.", field
        case "extra_forbidden" if field:
            return f"Unknown field '{field}'. Leave it out.", field
        case _:
            return None


def _is_tag(part: object) -> bool:
    return isinstance(part, str) and part.startswith(UNION_TAG)
