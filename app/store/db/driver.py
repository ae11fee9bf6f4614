"""Statements given to the database's driver itself, whose errors come back as SQLAlchemy's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

Parameters = Sequence[Any] | Mapping[str, Any]


def fetch(connection: Connection, statement: str, parameters: Parameters = ()) -> list[tuple[Any, ...]]:
    """All rows of a query."""
    with _described(connection, statement) as of_driver:
        found: list[tuple[Any, ...]] = of_driver.execute(statement, parameters).fetchall()
        return found


def run(connection: Connection, statement: str, parameters: Parameters = ()) -> None:
    """A statement that returns nothing."""
    with _described(connection, statement) as of_driver:
        of_driver.execute(statement, parameters)


def run_each(connection: Connection, statement: str, parameters: Sequence[Parameters]) -> None:
    """The same for each of these, at once."""
    if len(parameters) == 1:
        run(connection, statement, parameters[0])
        return
    with _described(connection, statement) as of_driver:
        of_driver.cursor().executemany(statement, parameters)
        watch_idleness(connection)


def watch_idleness(connection: Connection) -> None:
    """Have PostgreSQL's ``idle_in_transaction_session_timeout`` count again, which it does not after ``executemany``.

    That is sent in libpq's pipeline mode, behind whose last message the server waits for the next one without a limit.
    A process that is stopped just there would hold its locks for as long as it is.
    """
    if connection.dialect.name == "postgresql":
        of_driver: Any = connection.connection.dbapi_connection
        of_driver.execute("SELECT 1")


@contextmanager
def _described(connection: Connection, statement: str) -> Iterator[Any]:
    """The driver's connection. Parameters are in no error: they hold what people write."""
    dialect, of_driver = connection.dialect, connection.connection.dbapi_connection
    error_of_driver = dialect.loaded_dbapi.Error
    try:
        yield of_driver
    except error_of_driver as error:
        is_disconnect = dialect.is_disconnect(error, connection.connection, None)
        if is_disconnect:
            connection.invalidate(error)
        raise DBAPIError.instance(
            statement,
            None,
            error,
            error_of_driver,
            hide_parameters=True,
            connection_invalidated=is_disconnect,
            dialect=dialect,
        ) from error
