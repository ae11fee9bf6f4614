"""Errors shown to users. Each has a stable code, an HTTP status, and a message: what happened, why, what to do."""

from __future__ import annotations


class AppError(Exception):
    """Base class of the errors shown to users. ``message`` is complete and safe to display."""

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
    """The file to import is malformed; the message says where. Nothing was imported."""

    code = "broken_file"


class WrongCredentials(AppError):
    """The name, the password or the account does not allow signing in."""

    status = 401
    code = "wrong_credentials"


class TooManyRequests(AppError):
    """A rate limit or a quota is exceeded. ``retry_after`` is the number of seconds until a retry may succeed."""

    status = 429
    code = "too_many_requests"

    def __init__(self, message: str, retry_after: int) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class TooLarge(AppError):
    status = 413
    code = "too_large"


class NotFound(AppError):
    """The object is missing, or belongs to another user: the response is the same."""

    status = 404
    code = "not_found"


class NotAllowed(AppError):
    """The user sees the object, but may not change it."""

    status = 403
    code = "not_allowed"


class Conflict(AppError):
    status = 409
    code = "conflict"


class LimitReached(Conflict):
    """The user has as many objects, or bytes, as a setting allows. Nothing was changed; deleting some frees space."""

    code = "limit_reached"


class ProviderUnavailable(AppError):
    """The sign-in provider does not answer, or with garbage. Signing in with a password still works."""

    status = 503
    code = "provider_unavailable"


class Overloaded(AppError):
    status = 503
    code = "overloaded"


class EngineUnavailable(AppError):
    status = 503
    code = "engine_unavailable"


class ModelUnusable(AppError):
    """The model cannot be loaded, or cannot run here. The previous model stays loaded."""

    status = 422
    code = "model_unusable"


class NotSupported(AppError):
    status = 501
    code = "not_supported"


class StorageUnavailable(AppError):
    """The database does not respond, is locked, or its disk is full. Nothing was changed."""

    status = 503
    code = "storage_unavailable"


class StartupError(AppError):
    """The process cannot start as configured. The command line prints the message and exits with status 2."""

    code = "startup"


class MaintenanceError(AppError):
    """A command on the database or its backups failed. The message says what was left unchanged."""

    code = "maintenance"
