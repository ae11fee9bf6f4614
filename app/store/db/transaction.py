"""Runs transactions, standalone or behind a savepoint, and maps database failures to StorageUnavailable."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, ProgrammingError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.orm import Session

from app.errors import StorageUnavailable
from app.store.db import driver

_log = logging.getLogger(__name__)

#: Errors of one statement: a violated constraint, or a wrong statement. They leave the transaction usable.
STATEMENT_ERRORS = IntegrityError, ProgrammingError, DataError

Work = Callable[[Any], Any]
"""A function that runs in a transaction. Its argument depends on the :class:`TransactionMode`."""


class TransactionMode(NamedTuple):
    """How work runs in a transaction. Its changes are kept, or all undone if it raises."""

    alone: Callable[[Engine, Work], Any]  #: in a transaction of its own
    nested: Callable[[Connection, Work], Any]  #: behind a savepoint, in a transaction that other work shares


def run_transaction(engine: Engine, mode: TransactionMode, work: Work) -> Any:
    """Commits what ``work`` does, or rolls it back if it raises.

    Raises:
        StorageUnavailable: the database failed; nothing was changed.
    """
    with convert_errors():
        return mode.alone(engine, work)


@contextmanager
def convert_errors() -> Iterator[None]:
    """Raises StorageUnavailable for errors of the database. Those of one statement stay as they are."""
    try:
        yield
    except STATEMENT_ERRORS as error:
        if error.connection_invalidated:
            raise unavailable(error) from error
        raise
    except (DBAPIError, PoolTimeout) as error:  # unreachable, locked, full, damaged
        raise unavailable(error) from error


def run_read(engine: Engine, mode: TransactionMode, work: Work) -> Any:
    """As :func:`run_transaction`, for ``work`` that only reads: it is retried once if its connection was lost.

    After a restart of the database each connection of the pool may be lost. A write is not retried: whether a commit
    that was under way has succeeded is not known.
    """

    def alone(engine: Engine, work: Work) -> Any:
        try:
            return mode.alone(engine, work)
        except DBAPIError as error:
            if not is_lost_read(error):
                raise
        return mode.alone(engine, work)

    return run_transaction(engine, mode._replace(alone=alone), work)


def is_lost_read(error: DBAPIError) -> bool:
    """Whether a read failed because its connection was lost, so that it is retried; logs that."""
    if error.connection_invalidated:
        _log.warning("The database ended the connection of a read, which is retried: %s", _reason(error))
    return error.connection_invalidated


def unavailable(error: Exception) -> StorageUnavailable:
    """The error for users, with the database's reason; logs it too."""
    reason = _reason(error)
    _log.error("The database failed: %s", reason)
    return StorageUnavailable(
        f"The database cannot be used right now ({reason}). Nothing was changed; please try again in a moment."
    )


def _reason(error: Exception) -> str:
    return str(getattr(error, "orig", None) or error).strip().partition("\n")[0]


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


def _on_idle_connection(engine: Engine, work: Work) -> Any:
    with engine.connect() as connection:
        return work(connection)


def _behind_savepoint(connection: Connection, work: Work) -> Any:
    driver.run(connection, "SAVEPOINT one")
    try:
        done = work(connection)
    except Exception as error:
        if isinstance(error, STATEMENT_ERRORS) or not isinstance(error, DBAPIError):  # else the transaction may be gone
            driver.run(connection, "ROLLBACK TO one")
            driver.run(connection, "RELEASE one")
        raise
    driver.run(connection, "RELEASE one")
    return done


#: For work with the ORM; passes a :class:`~sqlalchemy.orm.Session`.
ORM_MODE = TransactionMode(_in_session, _in_nested_session)
#: For work with prepared statements only; passes a :class:`~sqlalchemy.Connection`. Takes half the time.
CORE_MODE = TransactionMode(_on_connection, _behind_savepoint)
#: For work with prepared statements only, each of which is a transaction of its own. PostgreSQL only.
STATEMENT_MODE = TransactionMode(_on_idle_connection, _behind_savepoint)
