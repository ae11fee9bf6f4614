"""Watches the sessions and keys of responses in flight, and ends the responses of revoked ones."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from app.auth.identity import Identity
from app.errors import StorageUnavailable
from app.store.accounts.api_keys import ApiKeys
from app.store.accounts.login_sessions import LoginSessions

#: A revocation made by another process is noticed within this time.
POLL_SECONDS = 3.0


class RevocationWatcher:
    """Checks all sessions and keys with responses in flight periodically, with two queries at a time."""

    def __init__(self, sessions: LoginSessions, keys: ApiKeys) -> None:
        self._sessions = sessions
        self._keys = keys
        self._watched: defaultdict[Identity, set[asyncio.Event]] = defaultdict(set)
        self._check_requested = asyncio.Event()

    @contextmanager
    def watch(self, identity: Identity) -> Iterator[asyncio.Event | None]:
        """Yields an event that is set as soon as the identity is revoked. Watched until the block ends."""
        revoked = asyncio.Event()
        self._watched[identity].add(revoked)
        try:
            yield revoked
        finally:
            self._watched[identity].discard(revoked)
            if not self._watched[identity]:
                del self._watched[identity]

    def check_now(self) -> None:
        """Requests a check at once, after a revocation in this process."""
        self._check_requested.set()

    async def run(self) -> None:
        """Checks every :data:`POLL_SECONDS`, and on request, until cancelled."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_SECONDS):
                    await self._check_requested.wait()
            self._check_requested.clear()
            with suppress(StorageUnavailable):  # logged by the database layer; responses go on meanwhile
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
                for revoked in self._watched.get(identity, ()):
                    revoked.set()
