"""Errors of ``/v1``, with the codes that OpenAI's clients know."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from itertools import islice
from types import MappingProxyType

from app.api.openai.fields import Lenient
from app.errors import AppError
from engine import (
    ChatOptions,
    ContextLengthError,
    DeadlineError,
    EngineError,
    EngineOverloadedError,
    EngineStoppedError,
    InvalidRequestError,
    SamplingParams,
)

_SAME: Mapping[str, str] = MappingProxyType({})


class OpenAIError(AppError):
    """An error with OpenAI's ``param`` field, which names the parameter at fault."""

    def __init__(self, status: int, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param


def to_openai_error(error: EngineError, param: str | None = None, spelling: Mapping[str, str] = _SAME) -> OpenAIError:
    """Converts an engine's error to the one that OpenAI would report.

    Args:
        param: the field that holds the prompt.
        spelling: as for :func:`invalid_value`.
    """
    match error:
        case ContextLengthError():
            return OpenAIError(400, "context_length_exceeded", str(error), param)
        case EngineOverloadedError():
            return OpenAIError(503, "overloaded", str(error))
        case EngineStoppedError():
            return OpenAIError(503, "engine_unavailable", str(error))
        case DeadlineError():
            return OpenAIError(504, "deadline_exceeded", str(error), "deadline")
        case InvalidRequestError():
            return invalid_value(error, spelling, param)
        case _:
            return OpenAIError(500, "engine_error", str(error))


def invalid_value(
    error: ValueError, spelling: Mapping[str, str] = _SAME, default_param: str | None = None
) -> OpenAIError:
    """Converts a value error of the engine, whose message starts with the parameter's name and says what is allowed.

    Args:
        spelling: maps the engine's parameter names to the caller's where they differ.
        default_param: the parameter to report if the message does not start with one.
    """
    name, space, rest = (str(error).rstrip(".") + ".").partition(" ")
    if name not in _PARAMETERS:
        return OpenAIError(400, "invalid_value", name + space + rest, default_param)
    name = spelling.get(name, name)
    return OpenAIError(400, "invalid_value", name + space + rest, name)


def check_fields(body: Lenient, *, strict: bool) -> dict[str, str]:
    """Returns the response header that lists the ignored fields; empty if there are none.

    Raises:
        OpenAIError: the request has an unknown field, and ``strict`` is set.
    """
    unknown = list(islice(body.unknown_fields(), MAX_LISTED))
    if not unknown:
        return {}
    if strict:
        name = _UNSAFE.sub("?", unknown[0][:MAX_FIELD_LENGTH])
        raise OpenAIError(400, "invalid_input", f"Unknown field '{name}'. Leave it out.", name)
    listed = ", ".join(_UNSAFE.sub("?", name[:MAX_FIELD_LENGTH]) for name in unknown)
    return {IGNORED_FIELDS: listed}


IGNORED_FIELDS = "X-Ignored-Fields"
MAX_LISTED = 20
"""Maximum number of names in that header; further ones are omitted."""
MAX_FIELD_LENGTH = 64
"""Maximum characters of a name in the header or a message; the rest is cut off."""
_UNSAFE = re.compile(r"[^A-Za-z0-9_.\[\]-]")

_PARAMETERS = {field.name for kind in (SamplingParams, ChatOptions) for field in fields(kind)}
_PARAMETERS |= {
    "beam_width",
    "best_of",
    "early_stopping",
    "length_penalty",
    "prompt",
    "return_token_strs",
    "top_logprobs",
}
