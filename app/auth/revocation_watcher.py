"""Long answers end when who asked for them may not any more."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from app.auth.identity import Identity
from app.errors import StorageUnavailable
from app.store.accounts.api_keys import ApiKeys
from app.store.accounts.login_sessions import LoginSessions

#: How soon a session that another process has ended is noticed here.
POLL_SECONDS = 3.0


class RevocationWatcher:
    """Looks after the sessions and keys whose answers are under way, all of them with two queries now and then."""

    def __init__(self, sessions: LoginSessions, keys: ApiKeys) -> None:
        self._sessions = sessions
        self._keys = keys
        self._watched: defaultdict[Identity, set[asyncio.Event]] = defaultdict(set)
        self._check_requested = asyncio.Event()

    @contextmanager
    def watch(self, identity: Identity) -> Iterator[asyncio.Event | None]:
        """While the block runs: an event that is set as soon as the identity does not hold any more."""
        ended = asyncio.Event()
        self._watched[identity].add(ended)
        try:
            yield ended
        finally:
            self._watched[identity].discard(ended)
            if not self._watched[identity]:
                del self._watched[identity]

    def check_now(self) -> None:
        """Something was revoked here: look at once."""
        self._check_requested.set()

    async def run(self) -> None:
        """Look now and then, for ever."""
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._check_requested.wait(), POLL_SECONDS)
            self._check_requested.clear()
            with suppress(StorageUnavailable):  # logged where it happened; who was let in stays until it is known
                await self._check()

    async def _check(self) -> None:
        watched = list(self._watched)
        sessions = {one.session_id for one in watched if one.session_id is not None}
        keys = {one.key_id for one in watched if one.key_id is not None}
        valid_ids = await self._sessions.find_valid(sessions) if sessions else set()
        if keys:
            valid_ids |= await self._keys.find_valid(keys)
        for identity in watched:
            if identity.session_id not in valid_ids and identity.key_id not in valid_ids:
                for ended in self._watched.get(identity, ()):
                    ended.set()
