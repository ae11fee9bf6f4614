"""How an error looks on the wire: ``{"error": {"code", "message"}}``, and OpenAI's shape in OpenAI's API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.responses import JSONResponse

#: Routes of vLLM's beside ``/v1``, which the same programs call.
BESIDE_V1 = frozenset({"/tokenize", "/detokenize", "/version", "/load"})


def is_openai_path(path: str) -> bool:
    """Whether ``path`` belongs to OpenAI's API as vLLM serves it: its callers are programs with an API key."""
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
    """The error as JSON, in the shape that callers of ``path`` expect."""
    # JSON can write half of a surrogate pair, and no answer can repeat it.
    message = message.encode(errors="replace").decode()
    error = openai_error(status, code, message, param) if is_openai_path(path) else {"code": code, "message": message}
    return JSONResponse({"error": error}, status_code=status, headers=dict(headers or {}))


def openai_error(status: int, code: str, message: str, param: str | None = None) -> dict[str, Any]:
    """What OpenAI puts under ``error``."""
    kind = "server_error" if status >= 500 else "invalid_request_error"
    return {"message": message, "type": kind, "param": param, "code": code}
