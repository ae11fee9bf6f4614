"""Error responses: ``{"error": {"code", "message"}}``, or OpenAI's shape on the paths of OpenAI's API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.responses import JSONResponse

#: vLLM's routes outside ``/v1``, called by the same clients.
BESIDE_V1 = frozenset({"/tokenize", "/detokenize", "/version", "/load"})


def is_openai_path(path: str) -> bool:
    """Whether ``path`` belongs to OpenAI's API as vLLM serves it. Its callers are programs with an API key."""
    return path.startswith("/v1/") or path.rstrip("/") in BESIDE_V1


def error_response(
    path: str,
    status: int,
    code: str,
    message: str,
    *,
    param: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> JSONResponse:
    """Returns the error as JSON, in the shape that callers of ``path`` expect."""
    # A JSON request can hold half of a surrogate pair, which UTF-8 cannot encode in the response.
    message = message.encode(errors="replace").decode()
    error = openai_error(status, code, message, param) if is_openai_path(path) else {"code": code, "message": message}
    return JSONResponse({"error": error}, status_code=status, headers=dict(headers or {}))


def openai_error(status: int, code: str, message: str, param: str | None = None) -> dict[str, Any]:
    """Returns the object that OpenAI puts under ``error``."""
    kind = "server_error" if status >= 500 else "invalid_request_error"
    return {"message": message, "type": kind, "param": param, "code": code}
