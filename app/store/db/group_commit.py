"""Group commit for a database with a single writer: all waiting writes share one transaction and one disk sync.

The time of a short write is its transaction: lock, commit, disk sync. Under load, the writes that arrive during a
transaction share the next one, each behind its own savepoint. A single write is a plain transaction.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from app.store.db.transaction import STATEMENT_ERRORS, TransactionMode, Work, run_transaction, unavailable

MAX_BATCH_WRITES = 64
MAX_TRANSACTION_SECONDS = 0.05
"""A transaction admits no further writes after this time: the finished ones wait for its commit."""


@dataclass(frozen=True, slots=True)
class _Write:
    mode: TransactionMode
    work: Work
    done: Future[Any] = field(default_factory=Future)


@dataclass(frozen=True, slots=True)
class _Raised:
    """The outcome of a write whose savepoint was rolled back."""

    error: Exception


class GroupCommit:
    """Runs writes in order of arrival.

    Args:
        engine: has one connection for the writes.
        threads: run one write at a time.
    """

    def __init__(self, engine: Engine, threads: Executor) -> None:
        self._engine = engine
        self._threads = threads
        self._lock = threading.Lock()  # guards the two fields below
        self._waiting: deque[_Write] = deque()
        self._writing = False

    async def run(self, mode: TransactionMode, work: Work) -> Any:
        """Runs ``work`` and returns after its commit. If the caller is cancelled, it never runs or runs to completion.

        Raises:
            StorageUnavailable: the database failed; nothing was changed.
        """
        write = _Write(mode, work)
        with self._lock:
            self._waiting.append(write)
            if not self._writing:
                self._threads.submit(self._write)
                self._writing = True
        return await asyncio.wrap_future(write.done)

    def _write(self) -> None:
        """Runs transactions until no write waits."""
        batch: list[_Write] = []  # left over from the transaction before, so they come first
        while True:
            with self._lock:
                new = [self._waiting.popleft() for _ in range(min(MAX_BATCH_WRITES, len(self._waiting)))]
                self._writing = bool(batch or new)
                if not self._writing:
                    return
            batch += [write for write in new if write.done.set_running_or_notify_cancel()]
            batch = self._commit(batch)

    def _commit(self, writes: list[_Write]) -> list[_Write]:
        """Runs one transaction. Returns the writes for which it had no time left."""
        try:
            outcomes = self._outcomes(writes)
        except Exception as error:
            for write in writes:
                write.done.set_exception(error)
            return []
        for write, outcome in zip(writes, outcomes, strict=False):
            if isinstance(outcome, _Raised):
                write.done.set_exception(outcome.error)
            else:
                write.done.set_result(outcome)
        return writes[len(outcomes) :]

    def _outcomes(self, writes: Sequence[_Write]) -> list[Any]:
        """Returns each write's result or error after the commit; fewer if the transaction ran out of time.

        Raises:
            StorageUnavailable: the transaction failed; nothing was changed.
            Exception: raised by a write that was alone in its transaction.
        """
        if len(writes) < 2:
            return [run_transaction(self._engine, write.mode, write.work) for write in writes]
        began = monotonic()
        outcomes: list[Any] = []
        try:
            with self._engine.begin() as connection:
                for write in writes:
                    if outcomes and monotonic() - began >= MAX_TRANSACTION_SECONDS:
                        break
                    outcomes.append(_outcome(connection, write))
        except (DBAPIError, PoolTimeout) as error:
            raise unavailable(error) from error
        return outcomes


def _outcome(connection: Connection, write: _Write) -> Any:
    """The write's result, or :class:`_Raised`.

    Raises:
        DBAPIError: the database failed, which may have ended the whole transaction.
    """
    try:
        return write.mode.nested(connection, write.work)
    except STATEMENT_ERRORS as error:
        if error.connection_invalidated:
            raise
        return _Raised(error)
    except DBAPIError:
        raise
    except Exception as error:
        return _Raised(error)
