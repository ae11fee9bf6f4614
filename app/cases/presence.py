"""Which agents have a case open, and who of them is typing.

Kept in memory: it says what is now, and nothing is lost with it. Processes on one PostgreSQL tell each other with the
database's notifications; one that misses a notification knows better at the next, which an open page sends every 15
seconds.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from app.errors import StorageUnavailable
from app.store.cases.signals import CaseSignals
from app.store.db.database import Database
from app.store.db.notifications import Channel, Notifications, notify

PRESENT_SECONDS = 40.0
"""How long a user is present after the last sign of life; a page gives one every 15 seconds."""


@dataclass(frozen=True, slots=True)
class PresentUser:
    id: str
    name: str
    typing: bool


class Presence:
    """The users who have cases open. Belongs to one event loop."""

    def __init__(
        self,
        database: Database,
        notifications: Notifications,
        signals: CaseSignals,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database = database
        self._signals = signals
        self._clock = clock
        self._users: dict[str, dict[str, tuple[PresentUser, float]]] = {}  # by case and user
        self._is_shared = notifications.is_shared
        notifications.subscribe(Channel.CASE_PRESENCE, self._received)

    async def put(self, case_id: str, user: PresentUser, *, here: bool = True) -> None:
        """Notes a sign of life, or that the user has left. The caller has checked that the user may read the case."""
        self._note(case_id, user, here)
        if not self._is_shared:
            return
        payload = json.dumps({"case": case_id, "id": user.id, "name": user.name, "typing": user.typing, "here": here})
        with suppress(StorageUnavailable):  # the next sign of life tells the other processes
            await self._database.write(lambda session: notify(session, Channel.CASE_PRESENCE, payload))

    def of(self, case_id: str) -> list[PresentUser]:
        """The users who have the case open, by name."""
        self._forget_gone(case_id)
        return sorted((user for user, _ in self._users.get(case_id, {}).values()), key=lambda user: user.name)

    def _note(self, case_id: str, user: PresentUser, here: bool) -> None:
        before = self.of(case_id)
        users = self._users.setdefault(case_id, {})
        if here:
            users[user.id] = (user, self._clock() + PRESENT_SECONDS)
        else:
            users.pop(user.id, None)
        if self.of(case_id) != before:
            self._signals.changed(case_id)

    def _forget_gone(self, case_id: str) -> None:
        now = self._clock()
        users = self._users.get(case_id, {})
        for id in [id for id, (_, until) in users.items() if until <= now]:
            del users[id]
        if not users:
            self._users.pop(case_id, None)

    def _received(self, payload: str) -> None:
        """Takes another process's word; any user of the database may notify, so nothing is taken for granted."""
        try:
            told = json.loads(payload)
            user = PresentUser(str(told["id"]), str(told["name"]), bool(told["typing"]))
            case_id, here = str(told["case"]), bool(told["here"])
        except (ValueError, KeyError, TypeError):
            return
        self._note(case_id, user, here)
