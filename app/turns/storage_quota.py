"""Whether a user has room for another message. Asked before each one: a reply under way may always come to its end."""

from __future__ import annotations

import time
from dataclasses import dataclass

from app.domain.storage import MAX_CONVERSATION_BYTES, StorageLimits, StorageUse, mebibytes
from app.errors import LimitReached
from app.store.chat.storage_use import StorageUsageRecords

COUNTED_SECONDS = 30.0
"""For so long a count holds, where it leaves much room."""
_MAX_ENTRIES = 10_000


@dataclass(frozen=True, slots=True)
class _Counted:
    use: StorageUse
    at: float


class StorageQuota:
    """Counts what users have stored, now and then where there is much room, each time where there is little.

    Args:
        uses: of the database in which the messages are kept.
        limits: of each user.
    """

    def __init__(self, uses: StorageUsageRecords, limits: StorageLimits) -> None:
        self._uses = uses
        self.limits = limits
        self._counted: dict[str, _Counted] = {}

    async def use_of(self, user_id: str) -> StorageUse:
        """What the user has stored now."""
        use = await self._uses.of(user_id)
        if len(self._counted) >= _MAX_ENTRIES:
            self._counted.clear()
        self._counted[user_id] = _Counted(use, time.monotonic())
        return use

    async def check(self, user_id: str, conversation_id: str | None) -> None:
        """Room for a message in a conversation, or in a new one (None).

        Raises:
            LimitReached: there is none; says what to do.
        """
        new = int(conversation_id is None)
        counted = self._counted.get(user_id)
        is_recent = counted is not None and time.monotonic() - counted.at < COUNTED_SECONDS
        if counted is None or not is_recent or self.limits.is_near(counted.use, conversations=new):
            use = await self.use_of(user_id)  # also before a refusal: something may have been deleted since
            self.limits.require_room(use, conversations=new)
        else:
            use = counted.use
        if conversation_id is not None and use.bytes > MAX_CONVERSATION_BYTES // 2:
            size = await self._uses.of_conversation(user_id, conversation_id)
            if size > MAX_CONVERSATION_BYTES:
                raise LimitReached(
                    f"This conversation takes {mebibytes(size)} with all its versions, and "
                    f"{mebibytes(MAX_CONVERSATION_BYTES)} is the most for one. Go on in a new conversation."
                )
