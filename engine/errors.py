"""Errors that the engine raises on purpose. Messages are for users: what happened, why, and what to do."""

from __future__ import annotations


class EngineError(Exception):
    """Base class of the engine's errors. ``str(error)`` can be shown to a user."""


class ModelLoadError(EngineError):
    """The model cannot be loaded or cannot run here (no such folder, pickle weights, no attention hook...)."""


class LoadCancelledError(ModelLoadError):
    """The program or the engine was stopped while the model was being loaded."""


class InvalidRequestError(EngineError, ValueError):
    """The request can never be served as it is (empty prompt, unsupported parameter, ...)."""


class ContextLengthError(InvalidRequestError):
    """The prompt does not fit the context window.

    ``prompt_tokens`` and ``max_model_len`` carry both numbers, for callers that write their own message.
    """

    def __init__(self, message: str, *, prompt_tokens: int, max_model_len: int) -> None:
        super().__init__(message)
        self.prompt_tokens = prompt_tokens
        self.max_model_len = max_model_len


class EngineOverloadedError(EngineError):
    """The waiting queue is full; the same request may be accepted later."""


class EngineStoppedError(EngineError):
    """The engine is draining, stopped or failed; requests in flight end with this error."""


class ReplyInterruptedError(EngineStoppedError):
    """The reply was interrupted because the engine stops, sleeps or loads another model."""


class EngineFailedError(EngineStoppedError):
    """A step failed, and this request was in it. The engine restarts by itself."""


class EngineBusyError(EngineError):
    """The engine is already starting, stopping or loading a model; try again when it is done."""


class DeadlineError(EngineError):
    """The request's deadline passed before its first token."""


class PoisonedPromptError(InvalidRequestError):
    """The prompt made the engine fail more than once and is refused for a while."""


class UnsupportedParameterError(InvalidRequestError):
    """A parameter is part of the interface but not supported here; the message names it."""


class LogitsError(EngineError):
    """Some requests (``request_ids``) have no next token, mostly because of a defect in the model or the kernel."""

    def __init__(self, message: str, *, request_ids: tuple[str, ...]) -> None:
        super().__init__(message)
        self.request_ids = request_ids


class EveryTokenBannedError(LogitsError):
    """The bans of the requests leave no token that could come next."""


def first_line(error: BaseException) -> str:
    """Returns the first line of an error message, which in other libraries' errors is the essential one."""
    return str(error).strip().split("\n", 1)[0]
