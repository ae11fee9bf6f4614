"""Transactions, by themselves or behind a savepoint, and what it means when the database fails."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, NamedTuple

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, ProgrammingError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.orm import Session

from app.errors import StorageUnavailable
from app.store.db import driver

_log = logging.getLogger(__name__)

#: Ours: a constraint that a caller reads, or a statement that is wrong. They leave a transaction as it was.
OURS = IntegrityError, ProgrammingError, DataError

Work = Callable[[Any], Any]
"""What is done in a transaction; gets what its :class:`TransactionMode` says."""


class TransactionMode(NamedTuple):
    """How work is given a transaction: what it does is kept, or nothing of it where it raises."""

    alone: Callable[[Engine, Work], Any]
    nested: Callable[[Connection, Work], Any]  #: in a transaction that others share, which goes on behind it


def run_transaction(engine: Engine, way: TransactionMode, work: Work) -> Any:
    """Commit what ``work`` does, or roll it back where it raises.

    Raises:
        StorageUnavailable: the database failed, and nothing was changed.
    """
    try:
        return way.alone(engine, work)
    except OURS as error:
        if error.connection_invalidated:
            raise unavailable(error) from error
        raise
    except (DBAPIError, PoolTimeout) as error:  # unreachable, locked, full, damaged
        raise unavailable(error) from error


def unavailable(error: Exception) -> StorageUnavailable:
    """For people: what the database failed with."""
    reason = str(getattr(error, "orig", None) or error).strip().partition("\n")[0]
    _log.error("The database failed: %s", reason)
    return StorageUnavailable(
        f"The database cannot be used right now ({reason}). Nothing was changed; please try again in a moment."
    )


def _in_session(engine: Engine, work: Work) -> Any:
    with Session(engine, expire_on_commit=False) as session, session.begin():
        return work(session)


def _in_nested_session(connection: Connection, work: Work) -> Any:
    with (
        Session(connection, expire_on_commit=False, join_transaction_mode="create_savepoint") as session,
        session.begin(),
    ):
        return work(session)


def _on_connection(engine: Engine, work: Work) -> Any:
    with engine.begin() as connection:
        return work(connection)


def _behind_savepoint(connection: Connection, work: Work) -> Any:
    driver.run(connection, "SAVEPOINT one")
    try:
        done = work(connection)
    except Exception as error:
        if isinstance(error, OURS) or not isinstance(error, DBAPIError):  # else nothing of the transaction may be left
            driver.run(connection, "ROLLBACK TO one")
            driver.run(connection, "RELEASE one")
        raise
    driver.run(connection, "RELEASE one")
    return done


#: Work with SQLAlchemy's objects; gets a :class:`~sqlalchemy.orm.Session`.
ORM_MODE = TransactionMode(_in_session, _in_nested_session)
#: Work with nothing but prepared statements; gets a :class:`~sqlalchemy.Connection`. It takes half the time.
CORE_MODE = TransactionMode(_on_connection, _behind_savepoint)
