"""How an error looks on the wire: ``{"error": {"code", "message"}}``, and OpenAI's shape below ``/v1``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.responses import JSONResponse


def error_response(
    path: str,
    status: int,
    code: str,
    message: str,
    *,
    param: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> JSONResponse:
    """The error as JSON, in the shape that callers of ``path`` expect."""
    error: dict[str, Any]
    if path.startswith("/v1/"):
        error = openai_error(status, code, message, param)
    else:
        error = {"code": code, "message": message}
    return JSONResponse({"error": error}, status_code=status, headers=dict(headers or {}))


def openai_error(status: int, code: str, message: str, param: str | None = None) -> dict[str, Any]:
    """What OpenAI puts under ``error``."""
    kind = "server_error" if status >= 500 else "invalid_request_error"
    return {"message": message, "type": kind, "param": param, "code": code}
