"""What can go wrong below ``/v1``, with the codes that OpenAI's clients know."""

from __future__ import annotations

from dataclasses import fields

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


class OpenAIError(AppError):
    """An error with OpenAI's extra field: which parameter it is about."""

    def __init__(self, status: int, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param


def translated(error: EngineError, param: str | None = None) -> OpenAIError:
    """An engine's error as OpenAI would report it. ``param`` is where the prompt came from."""
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
            return invalid_value(error)
        case _:
            return OpenAIError(500, "engine_error", str(error))


def invalid_value(error: ValueError) -> OpenAIError:
    """A value the engine refuses: its reason begins with the parameter's name, and says what is allowed."""
    reason = str(error).rstrip(".") + "."
    name = reason.partition(" ")[0]
    return OpenAIError(400, "invalid_value", reason, name if name in _PARAMETERS else None)


_PARAMETERS = {field.name for field in fields(SamplingParams)} | {"top_logprobs"}
