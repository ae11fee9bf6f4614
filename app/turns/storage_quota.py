"""Checks a user's storage quota before each message. A reply in flight may always finish."""

from __future__ import annotations

import time
from dataclasses import dataclass

from app.domain.storage import MAX_CONVERSATION_BYTES, StorageLimits, StorageUse, mebibytes
from app.errors import LimitReached
from app.store.chat.storage_use import StorageUsageRecords

COUNTED_SECONDS = 30.0
"""How long, in seconds, a count stays valid while the user is far from the limit."""
_MAX_ENTRIES = 10_000


@dataclass(frozen=True, slots=True)
class _Counted:
    use: StorageUse
    at: float


class StorageQuota:
    """Counts what users have stored: from a short-lived cache far from the limit, afresh each time near it.

    Args:
        uses: storage counts of the database that keeps the messages.
        limits: per user.
    """

    def __init__(self, uses: StorageUsageRecords, limits: StorageLimits) -> None:
        self._uses = uses
        self.limits = limits
        self._counted: dict[str, _Counted] = {}

    async def use_of(self, user_id: str) -> StorageUse:
        """Counts what the user has stored now, and caches it."""
        use = await self._uses.of(user_id)
        if len(self._counted) >= _MAX_ENTRIES:
            self._counted.clear()
        self._counted[user_id] = _Counted(use, time.monotonic())
        return use

    async def check_bytes(self, user_id: str) -> None:
        """Checks the quota for something that belongs to no conversation.

        Raises:
            LimitReached: the user is at the limit; the text says what to do.
        """
        await self._checked(user_id, new_conversations=0)

    async def check(self, user_id: str, conversation_id: str | None) -> None:
        """Checks the quota for a message in ``conversation_id``, or in a new conversation (None).

        Raises:
            LimitReached: the user or the conversation is at the limit; the text says what to do.
        """
        use = await self._checked(user_id, new_conversations=int(conversation_id is None))
        if conversation_id is not None and use.bytes > MAX_CONVERSATION_BYTES // 2:
            size = await self._uses.of_conversation(user_id, conversation_id)
            if size > MAX_CONVERSATION_BYTES:
                raise LimitReached(
                    f"This conversation takes {mebibytes(size)} with all its versions, and "
                    f"{mebibytes(MAX_CONVERSATION_BYTES)} is the most for one. Continue in a new conversation."
                )

    async def _checked(self, user_id: str, *, new_conversations: int) -> StorageUse:
        counted = self._counted.get(user_id)
        is_recent = counted is not None and time.monotonic() - counted.at < COUNTED_SECONDS
        if counted is not None and is_recent and not self.limits.is_near(counted.use, conversations=new_conversations):
            return counted.use
        use = await self.use_of(user_id)  # also before a refusal: something may have been deleted since
        self.limits.require_room(use, conversations=new_conversations)
        return use
