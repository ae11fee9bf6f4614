"""Maps the engine's errors to the app's."""

from __future__ import annotations

from app.errors import AppError, ContextTooLong, EngineUnavailable, InvalidInput, Overloaded
from engine import EngineError, EngineOverloadedError, EngineStoppedError


def context_too_long(tokens: int, context_length: int, *, subject: str, advice: str) -> ContextTooLong:
    """The error for a prompt that is too long: what is too long, by how much, and what to do."""
    return ContextTooLong(
        f"{subject} {tokens} tokens long; the model reads at most {context_length}, its reply included. {advice}."
    )


def as_app_error(error: EngineError | ValueError) -> AppError:
    """The app's error for a message that the engine rejected."""
    match error:
        case EngineOverloadedError():
            return Overloaded("Too many replies are waiting to be written. Please send again in a moment.")
        case EngineStoppedError():
            return EngineUnavailable(str(error))
        case ValueError():
            return InvalidInput(f"{str(error).rstrip('.')}.")
        case _:
            return EngineUnavailable(str(error))
