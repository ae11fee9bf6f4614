"""Maps the error responses of model servers to the engine's own errors."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from engine.errors import (
    ContextLengthError,
    EngineError,
    EngineFailedError,
    EngineOverloadedError,
    EngineStoppedError,
    InvalidRequestError,
)

MAX_SHOWN = 400
"""Characters of a server's error message that are shown; the rest is cut."""

#: Messages of servers for a prompt that is too long. The error types and codes of some servers take precedence.
_TOO_LONG = re.compile(
    r"maximum context length|context size|context window|context length|reads at most|longer than the maximum model"
    r"|must have less than \d+ tokens|max_new_tokens` must be|max_tokens' or 'max_completion_tokens' is too large"
    r"|cannot be greater than max_model_len",
    re.IGNORECASE,
)
_TOO_LONG_CODES = {"context_length_exceeded", "exceed_context_size_error"}
_PROMPT_TOKENS = (
    re.compile(r"\((\d+) in the messages"),
    re.compile(r"(?:has|contains|contains at least) (\d+) input tokens"),
    re.compile(r"prompt is (\d+) tokens"),
    re.compile(r"prompt contains (?:at least )?(\d+)"),
    re.compile(r"request \((\d+) tokens\)"),
    re.compile(r"Given: (\d+)"),
    re.compile(r"\((\d+) tokens\)"),
)
_LIMIT = (
    re.compile(r"context length is (?:only )?(\d+)"),
    re.compile(r"reads at most (\d+)"),
    re.compile(r"max_model_len=(\d+)"),
    re.compile(r"must have less than (\d+) tokens"),
    re.compile(r"context size \((\d+) tokens\)"),
)


@dataclass(frozen=True, slots=True)
class UpstreamFailure:
    """A failed attempt at a server."""

    error: EngineError  #: raised unless a retry succeeds
    is_retryable: bool = False  #: another server, or this one later, may succeed
    retry_after_seconds: float | None = None  #: the server's ``Retry-After``
    is_unhealthy: bool = False  #: the server is broken, as opposed to busy
    too_long: bool = False  #: prompt and reply together do not fit the server's context window
    prompt_tokens: int | None = None  #: the server's count, with ``too_long``
    limit: int | None = None  #: the server's context window in tokens, with ``too_long``


def parse_error_response(status: int, headers: Mapping[str, str], body: bytes, *, server: str) -> UpstreamFailure:
    """Maps an HTTP error response to a failure.

    Args:
        server: its display name.
    """
    payload = _json(body)
    message = _message(payload)
    said = f": {message}" if message else ""
    if status in (401, 403):
        return UpstreamFailure(
            EngineStoppedError(
                f"The model server {server} refuses the API key (status {status}). An administrator has to set "
                "ENGINE_REMOTE_API_KEY."
            ),
            is_unhealthy=True,
        )
    if status in (400, 413, 422, 500) and (long := _too_long(payload, message)):
        return long
    if status == 404:
        return UpstreamFailure(
            EngineStoppedError(f"The model server {server} no longer knows the model or the address{said}."),
            is_retryable=True,
            is_unhealthy=True,
        )
    if status == 429 or (status == 503 and "retry-after" in headers):
        wait = _seconds(headers.get("retry-after"))
        hint = f" It asks to wait {wait:.0f} seconds." if wait else ""
        return UpstreamFailure(
            EngineOverloadedError(f"The model server {server} takes no more requests right now.{hint}"),
            is_retryable=True,
            retry_after_seconds=wait,
        )
    if status in (408, 409, 425) or status >= 500:
        return UpstreamFailure(
            EngineStoppedError(
                f"The model server {server} cannot answer right now (status {status}{said}). Please try again."
            ),
            is_retryable=True,
            is_unhealthy=True,
        )
    if 300 <= status < 400:
        where = headers.get("location", "another address")
        return UpstreamFailure(
            EngineStoppedError(f"The model server {server} redirects to {where[:200]}. Set ENGINE_REMOTE_URL to that."),
            is_retryable=True,
            is_unhealthy=True,
        )
    return UpstreamFailure(InvalidRequestError(f"The model server refuses this request (status {status}){said}."))


def parse_stream_error(payload: Any, *, server: str) -> UpstreamFailure:
    """Maps an error event in the middle of a stream to a failure."""
    message = _message(payload)
    long = _too_long(payload, message)
    if long is not None:
        return long
    code = payload.get("code") if isinstance(payload, dict) else None
    status = code if isinstance(code, int) else 500
    if 400 <= status < 500 and status not in (408, 429):
        return UpstreamFailure(InvalidRequestError(f"The model server refuses this request: {message or status}."))
    return UpstreamFailure(
        EngineFailedError(
            f"The model server {server} failed while writing this reply{f' ({message})' if message else ''}. Please "
            "send your message again."
        ),
        is_retryable=True,
        is_unhealthy=True,
    )


def context_error(prompt_tokens: int, max_model_len: int) -> ContextLengthError:
    """Returns the same error as the in-process engine raises."""
    return ContextLengthError(
        f"The prompt is {prompt_tokens} tokens long; the model reads at most {max_model_len}, and at least one must be "
        "left for the reply. Shorten it.",
        prompt_tokens=prompt_tokens,
        max_model_len=max_model_len,
    )


def _too_long(payload: Any, message: str) -> UpstreamFailure | None:
    error = payload.get("error", payload) if isinstance(payload, dict) else None
    detail = error if isinstance(error, dict) else {}
    codes = {detail.get("code"), detail.get("type")} & _TOO_LONG_CODES
    if not codes and not _TOO_LONG.search(message):
        return None
    # llama.cpp reports the numbers in fields of their own, other servers only in the message.
    counted, limit = detail.get("n_prompt_tokens"), detail.get("n_ctx")
    return UpstreamFailure(
        InvalidRequestError(f"The model server refuses this request: {message or 'the prompt is too long'}."),
        too_long=True,
        prompt_tokens=counted if isinstance(counted, int) else _found(_PROMPT_TOKENS, message),
        limit=limit if isinstance(limit, int) else _found(_LIMIT, message),
    )


def _found(patterns: Sequence[re.Pattern[str]], message: str) -> int | None:
    found = next((match for pattern in patterns if (match := pattern.search(message))), None)
    return int(found[1]) if found else None


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:  # such as a proxy's HTML page, which is not shown to users
        return None


def _message(payload: Any) -> str:
    """Returns the message of an error, wherever the server puts it; empty if there is none."""
    for _ in range(3):
        if not isinstance(payload, dict):
            break
        payload = next((payload[name] for name in ("error", "message", "detail", "msg") if payload.get(name)), None)
    if isinstance(payload, list):  # FastAPI's validation: one entry for each field
        payload = "; ".join(str(each.get("msg", "")) for each in payload if isinstance(each, dict))
    text = " ".join(payload.split()) if isinstance(payload, str) else ""
    return (text[:MAX_SHOWN] + "…" if len(text) > MAX_SHOWN else text).rstrip(".")


def _seconds(value: str | None) -> float | None:
    """Parses ``Retry-After``, which is a number of seconds or a date."""
    if value is None:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        when = parsedate_to_datetime(value)
    except ValueError:
        return None
    return max(0.0, (when - datetime.now(UTC)).total_seconds()) if when.tzinfo else None
