"""Maps the engine's errors to the app's, and to what becomes of a reply."""

from __future__ import annotations

from dataclasses import dataclass

from app.domain.views import MessageStatus
from app.errors import AppError, ContextTooLong, EngineUnavailable, InvalidInput, Overloaded
from engine import EngineError, EngineFailedError, EngineOverloadedError, EngineStoppedError, FinishReason

ENGINE_FAILED = "The engine failed while writing this reply. Your message is saved; please send it again."


@dataclass(frozen=True, slots=True)
class FailedReply:
    """How a reply ends whose stream raised an error."""

    status: MessageStatus
    finish_reason: FinishReason
    message: str  #: for the user
    is_defect: bool = False  #: not an error that the engine raises on purpose


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
            reason = str(error).replace("structured holds a JSON schema that", "The JSON schema in the settings", 1)
            return InvalidInput(f"{reason.rstrip('.')}.")
        case _:
            return EngineUnavailable(str(error))


def as_failed_reply(error: BaseException) -> FailedReply:
    """What becomes of a reply whose stream raised ``error``."""
    match error:
        case EngineFailedError():  # a step failed; other engines that stop only cut the reply off, or do not begin it
            return FailedReply(MessageStatus.ERROR, FinishReason.ERROR, str(error))
        case EngineStoppedError():
            return FailedReply(MessageStatus.INTERRUPTED, FinishReason.ABORT, str(error))
        case EngineError():
            return FailedReply(MessageStatus.ERROR, FinishReason.ERROR, str(error))
        case AppError():  # the prompt of a further round
            return FailedReply(MessageStatus.ERROR, FinishReason.ERROR, error.message)
        case _:
            return FailedReply(MessageStatus.ERROR, FinishReason.ERROR, ENGINE_FAILED, is_defect=True)
