"""Periodic maintenance: the search indexes, purging deletions that can no longer be undone, retention."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime, timedelta

from app.errors import StorageUnavailable
from app.services.chats import TemporaryChats
from app.store.accounts.login_sessions import LoginSessions
from app.store.chat.deletions import Deletions
from app.store.chat.search_index import SearchIndex
from app.store.knowledge.indexing import ChunkIndex
from app.store.knowledge.stale_chunks import StaleChunks
from app.store.maintenance.retention import Retention

_log = logging.getLogger(__name__)

INDEX_SECONDS = 2.0  #: between two checks for messages to index
CLEAN_SECONDS = 600.0  #: between two cleanups
BETWEEN_BATCHES_SECONDS = 0.05  #: lets waiting writers in between two batches of the index
UNDO_HOURS = 1  #: how long a deletion can be undone


class Housekeeping:
    """The loops that background tasks run from start to close. They survive an unavailable database and try again.

    Args:
        retention_days: conversations without activity for longer are deleted; None keeps all.
        response_days: the same for stored responses.
    """

    def __init__(
        self,
        index: SearchIndex,
        chunks: ChunkIndex,
        stale: StaleChunks,
        deletions: Deletions,
        retention: Retention,
        temporary: TemporaryChats,
        sessions: LoginSessions | None = None,
        *,
        retention_days: int | None,
        response_days: int | None,
    ) -> None:
        self._index = index
        self._chunks = chunks
        self._stale = stale
        self._deletions = deletions
        self._retention = retention
        self._temporary = temporary
        self._sessions = sessions
        self._retention_days = retention_days
        self._response_days = response_days

    async def run_indexing(self) -> None:
        """Keeps the search indexes of chats and of the knowledge base up to date, and deletes stale chunks."""
        while True:
            try:
                more = await self._index.catch_up()
                more = await self._chunks.catch_up() or more
                more = await self._stale.clean_up() or more
            except StorageUnavailable:  # logged by the database layer
                more = False
            await asyncio.sleep(BETWEEN_BATCHES_SECONDS if more else INDEX_SECONDS)

    async def run_cleanup(self) -> None:
        """Runs :meth:`clean` every :data:`CLEAN_SECONDS`."""
        while True:
            try:
                await self.clean()
            except StorageUnavailable:
                _log.warning("old conversations could not be deleted; trying again later")
            await asyncio.sleep(CLEAN_SECONDS)

    async def clean(self) -> None:
        """Purges deletions that can no longer be undone, and what has expired: sessions, temporary chats, conversations
        and stored responses.

        Raises:
            StorageUnavailable: the database does not respond.
        """
        now = datetime.now(UTC)
        await self._temporary.delete_expired()
        if self._sessions is not None:
            await self._sessions.purge()
        await self._deletions.purge(before=now - timedelta(hours=UNDO_HOURS))
        if (days := self._retention_days) is not None:
            deleted = await self._retention.delete_older(now - timedelta(days=days))
            if deleted:
                _log.info("%d conversations without activity for %d days were deleted", deleted, days)
        if (days := self._response_days) is not None:
            deleted = await self._retention.delete_older_responses(now - timedelta(days=days))
            if deleted:
                _log.info("%d stored responses without activity for %d days were deleted", deleted, days)
