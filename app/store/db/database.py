"""Database access: runs transactions in threads, so that the event loop never waits for a disk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, create_engine, event, make_url, text
from sqlalchemy.orm import Session
from sqlalchemy.pool import StaticPool

from app.concurrency.cpu_affinity import WAITING_NICENESS, WORKING_NICENESS, become_background_thread
from app.errors import StorageUnavailable
from app.store.db import driver
from app.store.db.async_statements import AsyncStatements
from app.store.db.connection_checks import ping_after_pauses
from app.store.db.group_commit import GroupCommit
from app.store.db.prepared_statements import Prepared
from app.store.db.transaction import (
    CORE_MODE,
    ORM_MODE,
    STATEMENT_MODE,
    TransactionMode,
    Work,
    run_read,
    run_transaction,
)

Result = TypeVar("Result")

IN_MEMORY = "sqlite://"
READERS = 4
POSTGRES_CONNECTIONS = 8
#: Further connections for single statements. A commit waits for the disk, so several are under way.
STATEMENT_CONNECTIONS = 8
#: The ``application_name`` of a server's PostgreSQL connections, which tells them from those of CLI commands.
SERVER_NAME = "deskmate server"
CONNECT_TIMEOUT_SECONDS = 10
BUSY_TIMEOUT_MS = 5000
JOURNAL_SIZE_LIMIT = 64 * 2**20
IDLE_TRANSACTION_SECONDS = 10
_LIMIT_LOCK_WAITS = f"SET lock_timeout = {BUSY_TIMEOUT_MS}"


class Database:
    """Runs functions of a :class:`~sqlalchemy.orm.Session`, each in one transaction, outside the event loop.

    Code that every message runs uses prepared statements only (:mod:`app.store.db.prepared_statements`), in functions
    of a :class:`~sqlalchemy.Connection`.

    SQLite has one writer with its own connection and thread, so that writers queue instead of
    colliding (see :mod:`app.store.db.group_commit`), and a few readers that see a consistent snapshot
    at the same time. An in-memory SQLite has one connection for everything. PostgreSQL has one pool.

    A cancelled caller never leaves half a transaction: a transaction that has begun is committed or rolled
    back in its thread; one that has not begun never runs.
    """

    def __init__(self, url: str) -> None:
        """Opens no connection yet.

        Args:
            url: from ``AppSettings.resolved_database_url``, or ``IN_MEMORY``.
        """
        self._closed = False
        self._commits: GroupCommit | None = None  # SQLite only
        self._statements: AsyncStatements | None = None  # PostgreSQL only
        if url == IN_MEMORY:
            self._writer = self._reader = sqlite_engine(url, connections=1)
            self._write_threads = self._read_threads = _threads(1, "database-memory")
            self._commits = GroupCommit(self._writer, self._write_threads)
        elif make_url(url).get_backend_name() == "sqlite":
            self._writer = sqlite_engine(url, connections=1)
            self._reader = sqlite_engine(url, connections=READERS, read_only=True)
            self._write_threads = _threads(1, "database-write")
            self._read_threads = _threads(READERS, "database-read")
            self._commits = GroupCommit(self._writer, self._write_threads)
        else:
            self._writer = self._reader = postgres_engine(url, connections=POSTGRES_CONNECTIONS, name=SERVER_NAME)
            _limit_waits(self._writer)
            _begin_explicitly(self._writer)
            self._write_threads = self._read_threads = _threads(POSTGRES_CONNECTIONS, "database", WAITING_NICENESS)
            self._statements = _async_statements(self._writer)
        self.is_postgres = self._commits is None  #: otherwise it is SQLite
        self._statement_mode = STATEMENT_MODE if self.is_postgres else CORE_MODE

    async def read(self, work: Callable[[Session], Result]) -> Result:
        """Runs ``work`` in a read-only transaction, retried once if its connection is lost.

        Raises:
            StorageUnavailable: the database cannot be reached or read.
        """
        result: Result = await self._read(self._reader, ORM_MODE, work)
        return result

    async def read_rows(self, work: Callable[[Connection], Result]) -> Result:
        """As :meth:`read`, on a plain connection without the ORM.

        On PostgreSQL each statement is a transaction of its own, which saves two round trips. In one transaction, too,
        each would see its own snapshot there: the isolation level is read committed.
        """
        result: Result = await self._read(self._reader, self._statement_mode, work)
        return result

    async def read_statement(self, statement: Prepared, parameters: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """As :meth:`read_rows`, for one query, whose rows it returns. On PostgreSQL it needs no thread."""
        self._refuse_when_closed()
        if self._statements is not None:
            return await self._statements.read(statement, parameters)
        return await self.read_rows(lambda connection: statement.rows(connection, parameters))

    async def write_statement(self, statement: Prepared, parameters: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """As :meth:`write_rows`, for one statement, whose rows it returns. On PostgreSQL it needs no thread."""
        self._refuse_when_closed()
        if self._statements is not None:
            return await self._statements.write(statement, parameters)
        return await self.write_rows(lambda connection: statement.rows(connection, parameters))

    async def write(self, work: Callable[[Session], Result]) -> Result:
        """Runs ``work`` in a transaction and commits it; rolls back if it raises.

        Raises:
            StorageUnavailable: the database cannot be reached, is locked, or its disk is full.
        """
        result: Result = await self._write(ORM_MODE, work)
        return result

    async def write_rows(self, work: Callable[[Connection], Result]) -> Result:
        """As :meth:`write`, on a plain connection without the ORM."""
        result: Result = await self._write(CORE_MODE, work)
        return result

    async def ping(self) -> None:
        """Checks that the database answers.

        Raises:
            StorageUnavailable: it does not.
        """
        await self.read(lambda session: session.execute(text("SELECT 1")).scalar_one())

    async def close(self) -> None:
        """Waits for the transactions in progress, then closes every connection."""
        self._closed = True
        for threads in {self._write_threads, self._read_threads}:
            await asyncio.to_thread(threads.shutdown)
        if self._statements is not None:
            await self._statements.close()
        for engine in {self._writer, self._reader}:
            engine.dispose()

    async def _read(self, engine: Engine, mode: TransactionMode, work: Work) -> Any:
        self._refuse_when_closed()
        return await _in_thread(self._read_threads, run_read, engine, mode, work)

    async def _write(self, mode: TransactionMode, work: Work) -> Any:
        self._refuse_when_closed()
        if self._commits is not None:
            return await self._commits.run(mode, work)
        return await _in_thread(self._write_threads, run_transaction, self._writer, mode, work)

    def _refuse_when_closed(self) -> None:
        if self._closed:
            raise StorageUnavailable("The server is shutting down. Please try again once it is back.")


def _threads(number: int, name: str, niceness: int = WORKING_NICENESS) -> ThreadPoolExecutor:
    """Threads that do not go before the event loop, where many readers wait for text while one thread writes."""
    return ThreadPoolExecutor(
        number, thread_name_prefix=name, initializer=become_background_thread, initargs=(niceness,)
    )


async def _in_thread(
    threads: ThreadPoolExecutor,
    run: Callable[[Engine, TransactionMode, Work], Any],
    engine: Engine,
    mode: TransactionMode,
    work: Work,
) -> Any:
    return await asyncio.get_running_loop().run_in_executor(threads, run, engine, mode, work)


def is_postgres(session: Session | Connection) -> bool:
    """Whether the database is PostgreSQL; otherwise it is SQLite."""
    bind = session if isinstance(session, Connection) else session.get_bind()
    return bind.dialect.name == "postgresql"


@contextmanager
def open_snapshot(url: str) -> Iterator[Connection]:
    """A separate connection in a transaction that sees one snapshot of the database for as long as the block runs.

    Raises:
        SQLAlchemyError: the database cannot be opened.
    """
    sqlite = make_url(url).get_backend_name() == "sqlite"
    engine = sqlite_engine(url, connections=1, read_only=True) if sqlite else postgres_engine(url, connections=1)
    try:
        with engine.connect() as connection:
            if not sqlite:
                connection.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
            with connection.begin():
                yield connection
    finally:
        engine.dispose()


def sqlite_engine(url: str, *, connections: int, read_only: bool = False) -> Engine:
    """An engine for SQLite with real transactions, which also sets the pragmas of each connection."""
    if url == IN_MEMORY:  # a second connection would be a second database; only the database's own thread uses this one
        in_memory = {"check_same_thread": False}
        engine = create_engine(url, poolclass=StaticPool, connect_args=in_memory, hide_parameters=True)
    else:
        engine = create_engine(url, pool_size=connections, max_overflow=0, hide_parameters=True)

    @event.listens_for(engine, "connect")
    def configure(connection: Any, _record: object) -> None:
        # The driver's default begins transactions late and leaves DDL and reads outside of them.
        connection.isolation_level = None
        # SQLite's own functions fold the case of ASCII only.
        connection.create_function("casefold", 1, lambda value: value and value.casefold(), deterministic=True)
        for pragma in (
            f"busy_timeout = {BUSY_TIMEOUT_MS}",
            "journal_mode = WAL",
            "synchronous = FULL",
            "foreign_keys = ON",
            f"journal_size_limit = {JOURNAL_SIZE_LIMIT}",
            f"query_only = {int(read_only)}",
        ):
            connection.execute(f"PRAGMA {pragma}")

    # BEGIN IMMEDIATE takes the write lock at once: a transaction that reads first and writes later
    # could otherwise fail in the middle.
    begin_statement = "BEGIN" if read_only else "BEGIN IMMEDIATE"

    @event.listens_for(engine, "begin")
    def begin(connection: Any) -> None:
        driver.run(connection, begin_statement)

    return engine


def postgres_engine(url: str, *, connections: int, name: str = "deskmate") -> Engine:
    """An engine for PostgreSQL that notices connections the server has dropped.

    Args:
        name: the ``application_name`` under which the server lists the connections.
    """
    engine = create_engine(
        url,
        pool_size=connections,
        max_overflow=0,
        hide_parameters=True,  # parameters hold users' messages, and errors are logged
        connect_args=_connect_options(name),
    )
    ping_after_pauses(engine)
    return engine


def _connect_options(name: str) -> dict[str, Any]:
    return {"connect_timeout": CONNECT_TIMEOUT_SECONDS, "application_name": name}


def _async_statements(engine: Engine) -> AsyncStatements:
    # Parses the URL exactly as the engine's pool does.
    _, of_url = engine.dialect.create_connect_args(engine.url)
    options = {**of_url, **_connect_options(SERVER_NAME)}
    settings = (_LIMIT_LOCK_WAITS,)
    return AsyncStatements(engine.dialect, options, connections=STATEMENT_CONNECTIONS, settings=settings)


def _begin_explicitly(engine: Engine) -> None:
    """Lets a statement outside of a transaction be one of its own; ``engine.begin()`` sends ``BEGIN`` itself."""

    @event.listens_for(engine, "connect")
    def configure(connection: Any, _record: object) -> None:
        connection.autocommit = True

    @event.listens_for(engine, "begin")
    def begin(connection: Any) -> None:
        driver.run(connection, "BEGIN")


def _limit_waits(engine: Engine) -> None:
    """Limits lock waits as on SQLite, and lets the server end idle transactions: a process that is suspended in the
    middle of a transaction must not block the others."""

    @event.listens_for(engine, "connect")
    def configure(connection: Any, _record: object) -> None:
        connection.execute(_LIMIT_LOCK_WAITS)
        connection.execute(f"SET idle_in_transaction_session_timeout = '{IDLE_TRANSACTION_SECONDS}s'")
        connection.commit()

    @event.listens_for(engine, "after_cursor_execute")
    def executed(connection: Connection, *of_statement: Any) -> None:
        *_others, executemany = of_statement
        if executemany:
            driver.watch_idleness(connection)
