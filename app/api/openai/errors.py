"""What can go wrong below ``/v1``, with the codes that OpenAI's clients know."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from itertools import islice
from types import MappingProxyType

from app.api.openai.fields import Lenient
from app.errors import AppError
from engine import (
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
    """An error with OpenAI's extra field: which parameter it is about."""

    def __init__(self, status: int, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param


def to_openai_error(error: EngineError, param: str | None = None, spelling: Mapping[str, str] = _SAME) -> OpenAIError:
    """An engine's error as OpenAI would report it.

    Args:
        param: where the prompt came from.
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


def invalid_value(error: ValueError, spelling: Mapping[str, str] = _SAME, otherwise: str | None = None) -> OpenAIError:
    """A value the engine refuses: its reason begins with the parameter's name, and says what is allowed.

    Args:
        spelling: what the caller calls a parameter of the engine, where that is another name.
        otherwise: the parameter that a reason without a name is about.
    """
    name, space, rest = (str(error).rstrip(".") + ".").partition(" ")
    if name not in _PARAMETERS:
        return OpenAIError(400, "invalid_value", name + space + rest, otherwise)
    name = spelling.get(name, name)
    return OpenAIError(400, "invalid_value", name + space + rest, name)


def check_fields(body: Lenient, *, strict: bool) -> dict[str, str]:
    """The header that lists what is ignored of a request; empty where nothing is.

    Raises:
        OpenAIError: there is something that is not known, and ``strict`` refuses it.
    """
    unknown = list(islice(body.unknown_fields(), MAX_LISTED))
    if not unknown:
        return {}
    if strict:
        name = _UNSAFE.sub("?", unknown[0][:MAX_FIELD_LENGTH])
        raise OpenAIError(400, "invalid_input", f"The field '{name}' is not known here. Leave it out.", name)
    listed = ", ".join(_UNSAFE.sub("?", name[:MAX_FIELD_LENGTH]) for name in unknown)
    return {IGNORED_FIELDS: listed}


IGNORED_FIELDS = "X-Ignored-Fields"
MAX_LISTED = 20
"""Upper bound of the names in that header; the others are left out of it."""
MAX_FIELD_LENGTH = 64
"""Characters of a name that are told."""
_UNSAFE = re.compile(r"[^A-Za-z0-9_.\[\]-]")

_PARAMETERS = {field.name for field in fields(SamplingParams)} | {"prompt", "return_token_strs", "top_logprobs"}
