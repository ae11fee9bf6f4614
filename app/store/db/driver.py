"""Runs statements on the DBAPI driver directly; its errors are raised as SQLAlchemy's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Dialect
from sqlalchemy.exc import DBAPIError

Parameters = Sequence[Any] | Mapping[str, Any]


def fetch(connection: Connection, statement: str, parameters: Parameters = ()) -> list[tuple[Any, ...]]:
    """Returns all rows of a query."""
    with _described(connection, statement) as of_driver:
        found: list[tuple[Any, ...]] = of_driver.execute(statement, parameters).fetchall()
        return found


def run(connection: Connection, statement: str, parameters: Parameters = ()) -> None:
    """Runs a statement that returns nothing."""
    with _described(connection, statement) as of_driver:
        of_driver.execute(statement, parameters)


def run_each(connection: Connection, statement: str, parameters: Sequence[Parameters]) -> None:
    """Runs the statement once per element of ``parameters``, as one batch."""
    if len(parameters) == 1:
        run(connection, statement, parameters[0])
        return
    with _described(connection, statement) as of_driver:
        of_driver.cursor().executemany(statement, parameters)
        watch_idleness(connection)


def watch_idleness(connection: Connection) -> None:
    """Restarts PostgreSQL's ``idle_in_transaction_session_timeout``, which does not count after ``executemany``.

    ``executemany`` uses libpq's pipeline mode. After its last message the server waits for the next one without a
    limit, so a process that is suspended just there would hold its locks until it resumes.
    """
    if connection.dialect.name == "postgresql":
        of_driver: Any = connection.connection.dbapi_connection
        of_driver.execute("SELECT 1")


@contextmanager
def _described(connection: Connection, statement: str) -> Iterator[Any]:
    """Yields the driver's connection and converts its errors."""
    dialect, of_driver = connection.dialect, connection.connection.dbapi_connection
    error_of_driver = dialect.loaded_dbapi.Error
    try:
        yield of_driver
    except error_of_driver as error:
        is_disconnect = dialect.is_disconnect(error, connection.connection, None)
        if is_disconnect:
            connection.invalidate(error)
        raise described(dialect, statement, error, is_disconnect=is_disconnect) from error


def described(dialect: Dialect, statement: str, error: Exception, *, is_disconnect: bool) -> BaseException:
    """SQLAlchemy's error for an error of the driver. It hides the parameters: they hold users' messages."""
    return DBAPIError.instance(
        statement,
        None,
        error,
        dialect.loaded_dbapi.Error,
        hide_parameters=True,
        connection_invalidated=is_disconnect,
        dialect=dialect,
    )
