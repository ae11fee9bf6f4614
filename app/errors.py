"""Errors that people see. Each has a stable code, an HTTP status, and a sentence: what, why, what to do."""

from __future__ import annotations


class AppError(Exception):
    """Base of every error shown to a person. ``message`` is complete and safe to display."""

    status = 500
    code = "internal"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class InvalidInput(AppError):
    status = 422
    code = "invalid_input"


class ContextTooLong(InvalidInput):
    code = "context_too_long"


class BrokenFile(InvalidInput):
    """A file to import is not what it should be; the message says where. Nothing was imported."""

    code = "broken_file"


class WrongCredentials(AppError):
    """What was shown to sign in is not right."""

    status = 401
    code = "wrong_credentials"


class TooManyRequests(AppError):
    """Somebody does this too often, or too much at once; ``retry_after`` are the seconds after which it may work."""

    status = 429
    code = "too_many_requests"

    def __init__(self, message: str, retry_after: int) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class TooLarge(AppError):
    status = 413
    code = "too_large"


class NotFound(AppError):
    """Missing, or another user's: the answer is the same."""

    status = 404
    code = "not_found"


class Conflict(AppError):
    status = 409
    code = "conflict"


class LimitReached(Conflict):
    """Somebody has as much of something as a setting allows; nothing was changed. Deleting some makes room."""

    code = "limit_reached"


class Overloaded(AppError):
    status = 503
    code = "overloaded"


class EngineUnavailable(AppError):
    status = 503
    code = "engine_unavailable"


class ModelUnusable(AppError):
    """The model cannot be loaded, or cannot run here; the one before stays."""

    status = 422
    code = "model_unusable"


class NotSupported(AppError):
    status = 501
    code = "not_supported"


class StorageUnavailable(AppError):
    """The database does not answer, is locked, or its disk is full. Nothing was changed."""

    status = 503
    code = "storage_unavailable"


class StartupError(AppError):
    """The process cannot start as configured. The command line prints the message and exits with 2."""

    code = "startup"


class MaintenanceError(AppError):
    """A command on the database or its backups cannot do what it was asked; says what it left as it was."""

    code = "maintenance"
