"""Storage quotas per user, and their error texts."""

from __future__ import annotations

from dataclasses import dataclass

from app.errors import LimitReached

MIB = 1024 * 1024
MAX_CONVERSATION_BYTES = 64 * MIB
"""Size limit of one conversation with all its versions: it is exported, imported and branched as a whole."""
MESSAGE_BYTES = 1024
"""Charged per message in addition to its text: about the size of its row, its turn's row, and their index entries."""
CONVERSATION_BYTES = 1024
RESPONSE_BYTES = 1024
"""The same for each response that ``/v1/responses`` stores."""
MAX_TAGS = 1000
"""Distinct tags per user: the list of conversations shows them all."""

TEMPORARY_BYTES = 32 * MIB
"""Per user, for temporary chats, which are in the server's memory."""
_FAR_BYTES = 64 * MIB
_FAR_CONVERSATIONS = 100


@dataclass(frozen=True, slots=True)
class StorageUse:
    """A user's storage use."""

    bytes: int
    conversations: int
    tags: int  #: distinct tags
    responses: int = 0  #: stored by ``/v1/responses``


NOTHING = StorageUse(0, 0, 0)


@dataclass(frozen=True, slots=True)
class StorageLimits:
    """Storage limits per user; None is no limit."""

    max_bytes: int | None = None
    max_conversations: int | None = None
    max_tags: int | None = None
    temporary: bool = False  #: the limits apply to temporary chats

    def require_room(self, use: StorageUse, *, conversations: int = 0) -> None:
        """Checks before a write that there is room for more.

        Args:
            conversations: number of conversations to be added.

        Raises:
            LimitReached: the quota is used up; the text says how much is used, and what to do.
        """
        if self.max_bytes is not None and use.bytes >= self.max_bytes:
            if self.temporary:
                raise LimitReached(
                    f"Your temporary chats hold {mebibytes(use.bytes)}, and {mebibytes(self.max_bytes)} is the most. "
                    "Delete one, or continue in a saved chat."
                )
            raise LimitReached(
                f"Your storage is full: {mebibytes(use.bytes)} of {mebibytes(self.max_bytes)} are used. Delete "
                "conversations that you don't need any more, or ask an admin for more room."
            )
        if self.max_conversations is not None and use.conversations + conversations > self.max_conversations:
            raise LimitReached(
                f"You have {use.conversations:,} conversations, and {self.max_conversations:,} is the most that is "
                "kept per user. Delete some that you don't need any more."
            )

    def require_kept(self, use: StorageUse, before: StorageUse = NOTHING) -> None:
        """Checks after a write that it may be committed. A change that increases nothing always may.

        Args:
            use: with the write.
            before: without it.

        Raises:
            LimitReached: the write exceeds the quota; the text says by how much, and what to do.
        """
        if self.max_bytes is not None and use.bytes > max(self.max_bytes, before.bytes):
            if self.temporary:
                raise LimitReached(
                    f"With this your temporary chats would hold more than {mebibytes(self.max_bytes)}, which is the "
                    "most. Nothing was added. Delete one, or continue in a saved chat."
                )
            raise LimitReached(
                f"There isn't enough room: with this, more than your {mebibytes(self.max_bytes)} would be used. "
                "Nothing was added. Delete conversations that you don't need any more, or ask an admin for more room."
            )
        max_conversations = self.max_conversations
        if max_conversations is not None and use.conversations > max(max_conversations, before.conversations):
            raise LimitReached(
                f"With this you would have more than {max_conversations:,} conversations, the most that are kept "
                "per user. Nothing was added. Delete some that you don't need any more."
            )
        if self.max_tags is not None and use.tags > max(self.max_tags, before.tags):
            raise LimitReached(
                f"With this you would have {use.tags:,} different tags, and {self.max_tags:,} is the most that is kept "
                "per user. Nothing was added. Use tags that you have already."
            )

    def is_near(self, use: StorageUse, *, conversations: int = 0) -> bool:
        """Whether the use is so close to a limit that a cached count must not be relied on."""
        if self.max_bytes is not None and use.bytes > min(0.9 * self.max_bytes, self.max_bytes - _FAR_BYTES):
            return True
        if self.max_conversations is None or not conversations:
            return False
        return use.conversations + conversations > self.max_conversations - _FAR_CONVERSATIONS


def mebibytes(count: int) -> str:
    """Formats a size in bytes as MiB or GiB."""
    size = count / MIB
    if size >= 1024:
        return f"{size / 1024:,.1f} GiB"
    return f"{size:,.1f} MiB" if size < 10 else f"{size:,.0f} MiB"
