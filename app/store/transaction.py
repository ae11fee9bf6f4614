"""One transaction by itself, and what it means when the database fails."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from sqlalchemy import Engine
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, ProgrammingError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.orm import Session

from app.errors import StorageUnavailable

_log = logging.getLogger(__name__)

Result = TypeVar("Result")


def run_alone(engine: Engine, work: Callable[[Session], Result]) -> Result:
    """Commit what ``work`` does, or roll it back where it raises.

    Raises:
        StorageUnavailable: the database failed, and nothing was changed.
    """
    try:
        with Session(engine, expire_on_commit=False) as session, session.begin():
            return work(session)
    except (IntegrityError, ProgrammingError, DataError) as error:
        if error.connection_invalidated:
            raise unavailable(error) from error
        raise  # ours: a constraint that a caller reads, or a statement that is wrong
    except (DBAPIError, PoolTimeout) as error:  # unreachable, locked, full, damaged
        raise unavailable(error) from error


def unavailable(error: Exception) -> StorageUnavailable:
    """For people: what the database failed with."""
    reason = str(getattr(error, "orig", None) or error).strip().partition("\n")[0]
    _log.error("The database failed: %s", reason)
    return StorageUnavailable(
        f"The database cannot be used right now ({reason}). Nothing was changed; please try again in a moment."
    )
