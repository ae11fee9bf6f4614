"""What can go wrong, in words for the person who asked. Messages say what, why and what to do."""

from __future__ import annotations


class EngineError(Exception):
    """Base of everything the engine raises on purpose. ``str(error)`` is fit to show to a user."""


class ModelLoadError(EngineError):
    """The model cannot be loaded or cannot run here (no such folder, pickle weights, no attention hook...)."""


class LoadCancelledError(ModelLoadError):
    """Somebody ended the program, or the engine, while the model was being loaded."""


class InvalidRequestError(EngineError, ValueError):
    """The request can never be served as asked (empty prompt, a parameter that is not built, ...)."""


class ContextLengthError(InvalidRequestError):
    """The prompt does not fit the context window.

    ``prompt_tokens`` and ``max_model_len`` carry both numbers for a caller that words its own message.
    """

    def __init__(self, message: str, *, prompt_tokens: int, max_model_len: int) -> None:
        super().__init__(message)
        self.prompt_tokens = prompt_tokens
        self.max_model_len = max_model_len


class EngineOverloadedError(EngineError):
    """The waiting queue is full; the same request may be accepted later."""


class EngineStoppedError(EngineError):
    """The engine is draining, stopped, or died; requests in flight end with this error."""


class ReplyInterruptedError(EngineStoppedError):
    """The reply was cut off on purpose: the engine stops, sleeps, or loads another model."""


class EngineFailedError(EngineStoppedError):
    """A step failed, and this request was in it. The engine starts again by itself."""


class EngineBusyError(EngineError):
    """The engine is already starting, stopping, or loading a model; ask again when it is done."""


class DeadlineError(EngineError):
    """The request's deadline passed before its first token."""


class PoisonedPromptError(InvalidRequestError):
    """The prompt made the engine fail more than once and is refused for a while."""


class UnsupportedParameterError(InvalidRequestError):
    """A parameter that is part of the interface but not built yet; the message names it."""


class LogitsError(EngineError):
    """There is no next token for some requests (``request_ids``): mostly a defect of the model or the kernel."""

    def __init__(self, message: str, *, request_ids: tuple[str, ...]) -> None:
        super().__init__(message)
        self.request_ids = request_ids


class EveryTokenBannedError(LogitsError):
    """What the requests forbid leaves no token that could come next."""


def first_line(error: BaseException) -> str:
    """What another library said went wrong, without what it says besides."""
    return str(error).strip().split("\n", 1)[0]
