"""What processes on one PostgreSQL tell each other: look at this turn again. A hint; the truth is in the rows.

Nobody relies on a hint to arrive: whoever waits for one looks by itself after a while, too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Any

import psycopg
from psycopg import sql
from sqlalchemy import func, make_url, select
from sqlalchemy.orm import Session

from app.store.db.database import CONNECT_TIMEOUT_SECONDS, SERVER_NAME, is_postgres

_log = logging.getLogger(__name__)

FIRST_RETRY_SECONDS = 0.5
MAX_RETRY_SECONDS = 30.0

#: A connection that only listens would never notice that the other end is gone.
_KEEPALIVE = {"keepalives_idle": 15, "keepalives_interval": 5, "keepalives_count": 3}


class Channel(StrEnum):
    """What a hint is about; its payload is the id of a turn."""

    CHANGED = "deskmate_turn_changed"  #: for who reads it: it has grown, or ended
    STOP_REQUESTED = "deskmate_turn_asked"  #: for who writes it: it is to stop, or was deleted


def notify(session: Session, channel: Channel, turn_id: str) -> None:
    """Tell every process that listens, once this transaction is committed. On SQLite there is one process."""
    if is_postgres(session):
        session.execute(select(func.pg_notify(channel.value, turn_id)))


class Notifications:
    """The hints that come from the database, for those who watch for them. Belongs to one event loop.

    Args:
        url: of the database; nothing is ever opened for SQLite.
    """

    def __init__(self, url: str) -> None:
        self._url = make_url(url)
        self._watched: dict[tuple[str, str], set[asyncio.Event]] = {}
        self._lost = False

    @contextmanager
    def watch(self, channel: Channel, turn_id: str) -> Iterator[asyncio.Event]:
        """An event that is set at each hint, and whenever hints may have been missed. The caller clears it."""
        hinted = asyncio.Event()
        key = (channel.value, turn_id)
        self._watched.setdefault(key, set()).add(hinted)
        try:
            yield hinted
        finally:
            self._watched[key].discard(hinted)
            if not self._watched[key]:
                del self._watched[key]

    async def listen(self) -> None:
        """Receive hints until cancelled, connecting again by itself. On SQLite there is nothing to do."""
        if self._url.get_backend_name() != "postgresql":
            return
        delay = FIRST_RETRY_SECONDS
        while True:
            try:
                async with await self._connect() as connection:
                    for channel in Channel:
                        await connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel.value)))
                    self._connected()
                    delay = FIRST_RETRY_SECONDS
                    async for hint in connection.notifies():
                        for event in self._watched.get((hint.channel, hint.payload), ()):
                            event.set()
            except psycopg.Error as error:
                self._disconnected(error)
            await asyncio.sleep(delay)
            delay = min(2 * delay, MAX_RETRY_SECONDS)

    async def _connect(self) -> psycopg.AsyncConnection[Any]:
        # As the pool of the database reads the same URL.
        _, options = self._url.get_dialect()().create_connect_args(self._url)
        ours = {"connect_timeout": CONNECT_TIMEOUT_SECONDS, "application_name": SERVER_NAME}
        return await psycopg.AsyncConnection.connect(**{**ours, **_KEEPALIVE, **options}, autocommit=True)

    def _connected(self) -> None:
        if self._lost:
            self._lost = False
            _log.info("notifications between processes work again")
        for events in self._watched.values():
            for event in events:
                event.set()

    def _disconnected(self, error: psycopg.Error) -> None:
        if not self._lost:
            self._lost = True
            reason = str(error).strip().partition("\n")[0]
            _log.warning(
                "no notifications from other processes (%s); replies are looked at on a clock meanwhile", reason
            )
