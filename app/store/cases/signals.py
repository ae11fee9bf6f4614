"""Tells readers in this process that a case has changed. Other processes are told by the database's notifications."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager

from app.store.db.notifications import Channel, Notifications


class CaseSignals:
    """Wakes the readers of cases, of inboxes and of contacts. Belongs to one event loop.

    Args:
        notifications: hints of the other processes.
    """

    def __init__(self, notifications: Notifications) -> None:
        self._notifications = notifications
        self._watched: dict[str, set[asyncio.Event]] = {}

    def changed(self, *ids: str) -> None:
        """Wakes the readers of these cases, inboxes and contacts, after the commit."""
        for id in ids:
            for event in self._watched.get(id, ()):
                event.set()

    @contextmanager
    def watch(self, ids: Iterable[str]) -> Iterator[asyncio.Event]:
        """Yields an event that is set when one of these may have changed. The caller clears it.

        A hint may be lost with a connection: a reader also looks from time to time.
        """
        woken = asyncio.Event()
        watched = set(ids)
        with ExitStack() as stack:
            for id in watched:
                self._watched.setdefault(id, set()).add(woken)
                stack.enter_context(self._notifications.join(Channel.CASE_CHANGED, id, woken))
            try:
                yield woken
            finally:
                for id in watched:
                    self._watched[id].discard(woken)
                    if not self._watched[id]:
                        del self._watched[id]
