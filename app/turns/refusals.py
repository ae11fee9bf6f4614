"""The engine's refusals in the app's words."""

from __future__ import annotations

from app.errors import AppError, ContextTooLong, EngineUnavailable, InvalidInput, Overloaded
from engine import ContextLengthError, EngineError, EngineOverloadedError, EngineStoppedError


def as_app_error(error: EngineError | ValueError, *, begins_conversation: bool) -> AppError:
    """What to tell the person whose message the engine would not take."""
    match error:
        case ContextLengthError():
            subject = "This message is" if begins_conversation else "With the conversation so far, this message is"
            advice = "Shorten it" if begins_conversation else "Shorten it, or start a new chat"
            return ContextTooLong(
                f"{subject} {error.prompt_tokens} tokens long; the model reads at most {error.max_model_len}, "
                f"its reply included. {advice}."
            )
        case EngineOverloadedError():
            return Overloaded("Too many replies are waiting to be written. Please send again in a moment.")
        case EngineStoppedError():
            return EngineUnavailable(str(error))
        case ValueError():
            return InvalidInput(f"{str(error).rstrip('.')}.")
        case _:
            return EngineUnavailable(str(error))
