"""Writes responses of ``/v1/responses``: within the user's quota, and also if the client leaves at the end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from app.store.chat.responses import Exchange, ResponseRecords
from app.turns.storage_quota import StorageQuota


class ResponseWriter:
    """Stores the responses that end in this process.

    Args:
        records: the repository of stored responses.
        storage: the users' storage quotas.
    """

    def __init__(self, records: ResponseRecords, storage: StorageQuota) -> None:
        self._records = records
        self._storage = storage
        self._writing: set[asyncio.Task[None]] = set()

    async def require_room(self, user_id: str) -> None:
        """Checks before a reply that it may be stored. A reply in flight may always finish.

        Raises:
            LimitReached: the user's storage is full.
        """
        await self._storage.check_bytes(user_id)

    async def store(self, user_id: str, input: Iterable[dict[str, Any]], body: dict[str, Any]) -> None:
        """Stores a response that has ended. Once begun, it is written even if the caller is cancelled.

        Args:
            input: its own input items.
            body: the response as it is sent.

        Raises:
            NotFound: the user was deleted meanwhile.
            StorageUnavailable: the database does not respond.
        """
        writing = asyncio.create_task(self._records.add(user_id, Exchange(list(input), body)))
        self._writing.add(writing)
        writing.add_done_callback(self._ended)
        await asyncio.shield(writing)

    async def close(self) -> None:
        """Waits for the writes in progress."""
        await asyncio.gather(*self._writing, return_exceptions=True)

    def _ended(self, writing: asyncio.Task[None]) -> None:
        self._writing.discard(writing)
        if not writing.cancelled():
            writing.exception()  # the caller may have left; the database layer has logged it
