"""Group commit for a database with a single writer: all waiting writes share one transaction and one disk sync.

The time of a short write is its transaction: lock, commit, disk sync. Under load, the writes that arrive during a
transaction share the next one, each behind its own savepoint. A single write is a plain transaction.

The checkpoints of replies arrive here merged into one write (:mod:`app.store.chat.reply_writes`, which says why).
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from app.store.db.transaction import STATEMENT_ERRORS, TransactionMode, Work, run_transaction, unavailable

MAX_BATCH_WRITES = 64
"""A transaction takes at most this many of the waiting writes; the others wait for the next one."""
MAX_TRANSACTION_SECONDS = 0.05
"""A transaction starts no further writes after this time: the finished ones wait for its commit."""


@dataclass(frozen=True, slots=True)
class _PendingWrite:
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
        threads: an executor with a single thread.
    """

    def __init__(self, engine: Engine, threads: Executor) -> None:
        self._engine = engine
        self._threads = threads
        self._lock = threading.Lock()  # guards the two fields below
        self._waiting: deque[_PendingWrite] = deque()
        self._is_draining = False

    async def run(self, mode: TransactionMode, work: Work) -> Any:
        """Runs ``work`` and returns after its commit. If the caller is cancelled, it never runs or runs to completion.

        Raises:
            StorageUnavailable: the database failed; nothing was changed.
        """
        write = _PendingWrite(mode, work)
        with self._lock:
            self._waiting.append(write)
            if not self._is_draining:
                self._threads.submit(self._drain)
                self._is_draining = True
        return await asyncio.wrap_future(write.done)

    def _drain(self) -> None:
        """Runs transactions until no write waits."""
        while True:
            with self._lock:
                size = min(MAX_BATCH_WRITES, len(self._waiting))
                self._is_draining = size > 0
                if not size:
                    return
            self._run_batch(size)

    def _run_batch(self, size: int) -> None:
        """Runs one transaction of up to ``size`` waiting writes, and reports their outcomes.

        If it fails, the writes that it has started fail with it; the others run in the next transaction. If it cannot
        begin at all, all ``size`` writes fail, so that each of them waits for the database's lock once.
        """
        started: list[_PendingWrite] = []
        try:
            outcomes = self._commit(size, started)
        except Exception as error:
            for write in started or list(self._start(size, [])):
                write.done.set_exception(error)
            return
        for write, outcome in zip(started, outcomes, strict=True):
            if isinstance(outcome, _Raised):
                write.done.set_exception(outcome.error)
            else:
                write.done.set_result(outcome)

    def _start(self, size: int, started: list[_PendingWrite]) -> Iterator[_PendingWrite]:
        """Takes ``size`` waiting writes one by one and yields those not cancelled, which no longer can be."""
        for _ in range(size):
            with self._lock:
                write = self._waiting.popleft()
            if write.done.set_running_or_notify_cancel():
                started.append(write)
                yield write

    def _commit(self, size: int, started: list[_PendingWrite]) -> list[Any]:
        """Returns the result or error of each started write after the commit.

        Raises:
            StorageUnavailable: the transaction failed; nothing was changed.
            Exception: raised by a write that was alone in its transaction.
        """
        if size == 1:
            return [run_transaction(self._engine, write.mode, write.work) for write in self._start(size, started)]
        began = monotonic()
        outcomes: list[Any] = []
        try:
            with self._engine.begin() as connection:
                for write in self._start(size, started):
                    outcomes.append(_run_nested(connection, write))
                    if monotonic() - began >= MAX_TRANSACTION_SECONDS:
                        break
        except (DBAPIError, PoolTimeout) as error:
            raise unavailable(error) from error
        return outcomes


def _run_nested(connection: Connection, write: _PendingWrite) -> Any:
    """Runs a write behind its own savepoint. Returns its result, or :class:`_Raised`.

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
