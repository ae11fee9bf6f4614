"""Notifications between processes on one PostgreSQL: "read this turn again". Only a hint; the rows hold the truth.

No caller relies on a hint to arrive: every waiter also polls.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Any

import psycopg
from psycopg import sql
from sqlalchemy import Text, bindparam, func, make_url, select
from sqlalchemy.orm import Session

from app.store.db.database import CONNECT_TIMEOUT_SECONDS, SERVER_NAME, is_postgres
from app.store.db.prepared_statements import Prepared

_log = logging.getLogger(__name__)

FIRST_RETRY_SECONDS = 0.5
MAX_RETRY_SECONDS = 30.0

#: A connection that only listens would never notice that its peer is gone.
_KEEPALIVE = {"keepalives_idle": 15, "keepalives_interval": 5, "keepalives_count": 3}


class Channel(StrEnum):
    """The kinds of notification. The payload is the id of a turn, or of a case, an inbox or a contact."""

    CHANGED = "deskmate_turn_changed"  #: to readers: the reply has grown or ended
    STOP_REQUESTED = "deskmate_turn_asked"  #: to the writer: stop, or the turn was deleted
    CASE_CHANGED = "deskmate_case_changed"  #: to readers of the case, of the inbox's list, or of a contact's streams
    CASE_PRESENCE = "deskmate_case_presence"  #: a user opens or leaves a case; the payload says it all, as JSON


_NOTIFY = Prepared(select(func.pg_notify(bindparam("channel", type_=Text()), bindparam("payload", type_=Text()))))


def notify(session: Session, channel: Channel, payload: str) -> None:
    """Notifies all listening processes when this transaction commits. Does nothing on SQLite: there is one process."""
    if is_postgres(session):
        _NOTIFY.rows(session.connection(), {"channel": channel.value, "payload": payload})


class Notifications:
    """Delivers the database's notifications to watchers. Belongs to one event loop.

    Args:
        url: of the database; SQLite opens no connection.
    """

    def __init__(self, url: str) -> None:
        self._url = make_url(url)
        self._watched: dict[tuple[str, str], set[asyncio.Event]] = {}
        self._subscribed: dict[str, list[Callable[[str], None]]] = {}
        self._lost = False

    @contextmanager
    def watch(self, channel: Channel, turn_id: str) -> Iterator[asyncio.Event]:
        """Yields an event that is set at each hint and whenever hints may have been missed. The caller clears it."""
        hinted = asyncio.Event()
        with self.join(channel, turn_id, hinted):
            yield hinted

    @contextmanager
    def join(self, channel: Channel, id: str, hinted: asyncio.Event) -> Iterator[None]:
        """As :meth:`watch`, with the caller's event, which may wait for several ids."""
        key = (channel.value, id)
        self._watched.setdefault(key, set()).add(hinted)
        try:
            yield
        finally:
            self._watched[key].discard(hinted)
            if not self._watched[key]:
                del self._watched[key]

    @property
    def is_shared(self) -> bool:
        """Whether other processes may use the database, too."""
        return self._url.get_backend_name() == "postgresql"

    def subscribe(self, channel: Channel, received: Callable[[str], None]) -> None:
        """Calls ``received`` with the payload of each notification of the channel, this process's own among them."""
        self._subscribed.setdefault(channel.value, []).append(received)

    async def listen(self) -> None:
        """Receives hints until cancelled and reconnects by itself. Returns at once on SQLite."""
        if not self.is_shared:
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
                        for received in self._subscribed.get(hint.channel, ()):
                            received(hint.payload)
            except psycopg.Error as error:
                self._disconnected(error)
            await asyncio.sleep(delay)
            delay = min(2 * delay, MAX_RETRY_SECONDS)

    async def _connect(self) -> psycopg.AsyncConnection[Any]:
        # Parses the URL exactly as the database's pool does.
        _, options = self._url.get_dialect()().create_connect_args(self._url)
        defaults = {"connect_timeout": CONNECT_TIMEOUT_SECONDS, "application_name": SERVER_NAME}
        return await psycopg.AsyncConnection.connect(**{**defaults, **_KEEPALIVE, **options}, autocommit=True)

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
            _log.warning("no notifications from other processes (%s); replies of theirs are polled meanwhile", reason)
