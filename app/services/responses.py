"""Stored responses of ``/v1/responses``: within the user's quota, and written even if the client leaves at the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any

from app.store.chat.responses import Exchange, ResponseRecords
from app.turns.storage_quota import StorageQuota


class Responses:
    """The stored responses.

    Args:
        records: their repository.
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

    def _ended(self, writing: asyncio.Task[None]) -> None:
        self._writing.discard(writing)
        if not writing.cancelled():
            writing.exception()  # the caller may have left; the database layer has logged it

    async def get(self, user_id: str, response_id: str) -> Exchange:
        """Returns a response with its input.

        Raises:
            NotFound: it is missing or another user's.
        """
        return await self._records.get(user_id, response_id)

    async def chain(self, user_id: str, response_id: str) -> list[Exchange]:
        """Returns a response with all that it continues, oldest first.

        Raises:
            NotFound: one of them is missing or another user's.
            LimitReached: they are too large to be read at once.
        """
        return await self._records.chain(user_id, response_id)

    async def with_ids(self, user_id: str, response_ids: Iterable[str]) -> dict[str, Exchange]:
        """Returns those of the responses that the user has, by their id."""
        return await self._records.with_ids(user_id, response_ids)

    async def delete(self, user_id: str, response_id: str) -> None:
        """Deletes a response. Those that continue it stay, but cannot be continued any more.

        Raises:
            NotFound: it is missing or another user's.
        """
        await self._records.delete(user_id, response_id)

    def read_all(self, user_id: str) -> AsyncIterator[Exchange]:
        """Yields all of a user's responses, oldest first."""
        return self._records.read_all(user_id)

    async def delete_all(self, user_id: str) -> int:
        """Deletes all of a user's responses; returns how many there were."""
        return await self._records.delete_all(user_id)

    async def close(self) -> None:
        """Waits for the writes in progress."""
        await asyncio.gather(*self._writing, return_exceptions=True)
