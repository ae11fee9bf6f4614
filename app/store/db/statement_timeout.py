"""A time limit for queries whose search terms come from users."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from sqlite3 import Connection as SqliteConnection
from typing import Any

import psycopg
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from app.store.db.database import is_postgres

_AGAIN_SECONDS = 0.05


class TooSlowError(Exception):
    """A statement exceeded its time limit. Its transaction is unusable."""


@contextmanager
def time_limit(session: Session, seconds: float) -> Iterator[None]:
    """Limits read-only statements: each single statement on PostgreSQL, all of them together on SQLite.

    Raises:
        TooSlowError: the limit, in seconds, was exceeded.
    """
    try:
        if is_postgres(session):
            session.execute(text(f"SET LOCAL statement_timeout = {max(1, round(1000 * seconds))}"))
            yield
            session.execute(text("SET LOCAL statement_timeout = 0"))
        else:
            of_driver: Any = session.connection().connection.dbapi_connection
            with _interrupted_after(of_driver, seconds):
                yield
    except DBAPIError as error:
        if isinstance(error.orig, psycopg.errors.QueryCanceled) or "interrupted" in str(error.orig):
            raise TooSlowError from error
        raise


@contextmanager
def _interrupted_after(connection: SqliteConnection, seconds: float) -> Iterator[None]:
    # Again and again: an interrupt between two statements stops neither. A late one would hit the connection's next.
    lock, over = threading.Lock(), threading.Event()

    def interrupt() -> None:
        pause = seconds
        while not over.wait(pause):
            with lock:
                if not over.is_set():
                    connection.interrupt()
            pause = _AGAIN_SECONDS

    threading.Thread(target=interrupt, name="time limit", daemon=True).start()
    try:
        yield
    finally:
        with lock:
            over.set()
