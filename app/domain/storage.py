"""How much a user may store, and the sentences about it."""

from __future__ import annotations

from dataclasses import dataclass

from app.errors import LimitReached

MIB = 1024 * 1024
MAX_CONVERSATION_BYTES = 64 * MIB
"""Of one conversation, with all its versions: it is exported, imported and branched as a whole."""
MESSAGE_BYTES = 1024
"""Counted for a message beside its text: its row, its turn's, and their places in the indexes take about as much."""
CONVERSATION_BYTES = 1024
MAX_TAGS = 1000
"""Different ones of one user: the list of conversations shows them all."""

TEMPORARY_BYTES = 32 * MIB
"""Of one user's temporary chats, which are in the server's memory."""
_FAR_BYTES = 64 * MIB
_FAR_CONVERSATIONS = 100


@dataclass(frozen=True, slots=True)
class StorageUse:
    """What a user has stored."""

    bytes: int
    conversations: int
    tags: int  #: different ones


NOTHING = StorageUse(0, 0, 0)


@dataclass(frozen=True, slots=True)
class StorageLimits:
    """What each user may store; None is any amount."""

    max_bytes: int | None = None
    max_conversations: int | None = None
    max_tags: int | None = None
    temporary: bool = False  #: of chats in memory only

    def require_room(self, use: StorageUse, *, conversations: int = 0) -> None:
        """Whether there is room for something more.

        Args:
            conversations: how many are to be added.

        Raises:
            LimitReached: there is not; says how much is used of how much, and what to do.
        """
        if self.max_bytes is not None and use.bytes >= self.max_bytes:
            if self.temporary:
                raise LimitReached(
                    f"Your temporary chats hold {mebibytes(use.bytes)}, and {mebibytes(self.max_bytes)} is the most. "
                    "Delete one, or go on in a chat that is kept."
                )
            raise LimitReached(
                f"Your storage is full: {mebibytes(use.bytes)} of {mebibytes(self.max_bytes)} are used. Delete "
                "conversations that you don't need any more, or ask an admin for more room."
            )
        if self.max_conversations is not None and use.conversations + conversations > self.max_conversations:
            raise LimitReached(
                f"You have {use.conversations:,} conversations, and {self.max_conversations:,} is the most that is "
                "kept for one person. Delete some that you don't need any more."
            )

    def require_kept(self, use: StorageUse, before: StorageUse = NOTHING) -> None:
        """Whether what was just written may stay. A change that makes nothing larger always may.

        Args:
            use: with what was written.
            before: without it.

        Raises:
            LimitReached: it is too much; says how much it would be, and what to do.
        """
        if self.max_bytes is not None and use.bytes > max(self.max_bytes, before.bytes):
            if self.temporary:
                raise LimitReached(
                    f"With this your temporary chats would hold more than {mebibytes(self.max_bytes)}, which is the "
                    "most. Nothing was added. Delete one, or go on in a chat that is kept."
                )
            raise LimitReached(
                f"There isn't enough room: with this, more than your {mebibytes(self.max_bytes)} would be used. "
                "Nothing was added. Delete conversations that you don't need any more, or ask an admin for more room."
            )
        max_conversations = self.max_conversations
        if max_conversations is not None and use.conversations > max(max_conversations, before.conversations):
            raise LimitReached(
                f"With this you would have more than {max_conversations:,} conversations, the most that are kept "
                "for one person. Nothing was added. Delete some that you don't need any more."
            )
        if self.max_tags is not None and use.tags > max(self.max_tags, before.tags):
            raise LimitReached(
                f"With this you would have {use.tags:,} different tags, and {self.max_tags:,} is the most that is kept "
                "for one person. Nothing was added. Use tags that you have already."
            )

    def is_near(self, use: StorageUse, *, conversations: int = 0) -> bool:
        """Whether so little room is left that an old count says nothing."""
        if self.max_bytes is not None and use.bytes > min(0.9 * self.max_bytes, self.max_bytes - _FAR_BYTES):
            return True
        if self.max_conversations is None or not conversations:
            return False
        return use.conversations + conversations > self.max_conversations - _FAR_CONVERSATIONS


def mebibytes(count: int) -> str:
    """A size for people."""
    size = count / MIB
    if size >= 1024:
        return f"{size / 1024:,.1f} GiB"
    return f"{size:,.1f} MiB" if size < 10 else f"{size:,.0f} MiB"
