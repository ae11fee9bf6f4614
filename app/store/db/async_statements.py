"""Runs single statements of PostgreSQL on the event loop.

A database thread waits for Python's lock before it sends a statement and again before it reads the answer, and the
event loop waits for the thread: with many replies in flight that takes several times as long as the statement.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import Coroutine, Mapping
from typing import Any, NoReturn

import psycopg
from psycopg.pq import TransactionStatus
from sqlalchemy import Dialect
from sqlalchemy.exc import DBAPIError

from app.store.db import driver
from app.store.db.prepared_statements import Prepared
from app.store.db.transaction import convert_errors, is_lost_read

Connection = psycopg.AsyncConnection[tuple[Any, ...]]


class AsyncStatements:
    """Connections on which each statement is a transaction of its own. They belong to one event loop at a time.

    Args:
        dialect: of the database's engine.
        options: of new connections, as psycopg's.
        connections: most that are open at the same time; further statements wait.
        settings: statements that each connection begins with.
    """

    def __init__(
        self, dialect: Dialect, options: Mapping[str, Any], *, connections: int, settings: tuple[str, ...]
    ) -> None:
        self._dialect = dialect
        self._options = options
        self._max_connections = connections
        self._settings = settings
        self._loop: asyncio.AbstractEventLoop | None = None
        self._free = asyncio.Semaphore(connections)
        self._idle: list[Connection] = []
        self._running: set[asyncio.Task[Any]] = set()

    async def read(self, statement: Prepared, parameters: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """Returns the rows of a query, which is repeated once if its connection was lost.

        Raises:
            StorageUnavailable: the database cannot be reached or read.
        """
        return await self._shielded(self._read(statement, parameters))

    async def write(self, statement: Prepared, parameters: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """Returns the rows that a statement returns, if any. If the caller is cancelled, it is completed nevertheless.

        Raises:
            StorageUnavailable: the database cannot be reached, or the rows are locked; nothing was changed.
        """
        return await self._shielded(self._write(statement, parameters))

    async def close(self) -> None:
        """Waits for the statements in progress, then closes every connection."""
        if self._running:
            await asyncio.wait(self._running)
        while self._idle:
            await self._idle.pop().close()

    async def _shielded(self, statement: Coroutine[Any, Any, list[tuple[Any, ...]]]) -> list[tuple[Any, ...]]:
        self._enter_loop()
        task = asyncio.create_task(statement)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # marks it as retrieved: the caller may have been cancelled

    def _enter_loop(self) -> None:
        """Forgets the connections of another event loop, which has ended."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop = loop
            self._free = asyncio.Semaphore(self._max_connections)
            self._discard_idle()

    async def _read(self, statement: Prepared, parameters: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        with convert_errors():
            try:
                return await self._run(statement, parameters)
            except DBAPIError as error:
                if not is_lost_read(error):
                    raise
            return await self._run(statement, parameters)

    async def _write(self, statement: Prepared, parameters: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        with convert_errors():
            return await self._run(statement, parameters)

    async def _run(self, statement: Prepared, parameters: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        compiled = statement.compiled(self._dialect)
        given = compiled.parameters(parameters)
        async with self._free:
            connection = await self._connection()
            try:
                cursor = await connection.execute(compiled.text, given)
                found = await cursor.fetchall() if cursor.description is not None else []
            except psycopg.Error as error:
                self._fail(compiled.text, error, connection)
            finally:
                if connection.info.transaction_status is TransactionStatus.IDLE:
                    self._idle.append(connection)
                else:  # lost, or left in the middle of a statement
                    connection.pgconn.finish()
                    self._discard_idle()
        return compiled.converted_rows(found)

    async def _connection(self) -> Connection:
        while self._idle:
            connection = self._idle.pop()
            if not _has_news(connection):
                return connection
            connection.pgconn.finish()
        try:
            connection = await psycopg.AsyncConnection.connect(**self._options, autocommit=True)
        except psycopg.Error as error:
            self._fail("connect", error, None)
        is_ready = False
        try:
            for setting in self._settings:
                await connection.execute(setting)
            is_ready = True
        except psycopg.Error as error:
            self._fail("connect", error, connection)
        finally:
            if not is_ready:
                connection.pgconn.finish()
        return connection

    def _fail(self, statement: str, error: psycopg.Error, connection: Connection | None) -> NoReturn:
        is_disconnect = connection is not None and connection.closed
        raise driver.described(self._dialect, statement, error, is_disconnect=is_disconnect) from error

    def _discard_idle(self) -> None:
        """Closes the idle connections: if the database has ended one, it has probably ended all."""
        while self._idle:
            self._idle.pop().pgconn.finish()


def _has_news(connection: Connection) -> bool:
    """Whether the server has sent something to an idle connection: usually that it ends it."""
    poll = select.poll()
    poll.register(connection.pgconn.socket, select.POLLIN)
    return bool(poll.poll(0))
