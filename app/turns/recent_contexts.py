"""Caches the context of a conversation's next message when this process has just written its last reply.

Most messages follow such a reply. The cache trusts nothing that could have changed: a context is looked up by the last
message that the user sees, and the transaction that writes the message checks that it is still the last.
"""

from __future__ import annotations

from collections import OrderedDict

from app.store.chat.turn_contexts import TurnContext

MAX_CHARS = 4_000_000
"""Capacity: characters over all cached messages. Above it the oldest contexts are evicted."""


class RecentContexts:
    """A cache of contexts that evicts the oldest write first. Belongs to one event loop.

    Only for a process that is the database's single writer: otherwise another process may resume a reply under its id.

    Args:
        max_chars: capacity; the oldest contexts are evicted above it. 0 caches nothing.
    """

    def __init__(self, max_chars: int = MAX_CHARS) -> None:
        self._max_chars = max_chars
        self._kept: OrderedDict[tuple[str, str], TurnContext] = OrderedDict()  # by user and conversation
        self._num_chars = 0

    def find(self, user_id: str, conversation_id: str, tip_id: str) -> TurnContext | None:
        """The context of a message after ``tip_id``, or None. Its settings are the last message's, perhaps outdated."""
        context = self._kept.get((user_id, conversation_id))
        return context if context is not None and context.parent_id == tip_id else None

    def keep(self, user_id: str, conversation_id: str, context: TurnContext) -> None:
        """Caches the conversation's latest context."""
        self.forget(user_id, conversation_id)
        self._kept[user_id, conversation_id] = context
        self._num_chars += _size(context)
        while self._num_chars > self._max_chars:
            _, oldest = self._kept.popitem(last=False)
            self._num_chars -= _size(oldest)

    def forget(self, user_id: str, conversation_id: str) -> None:
        """Evicts the conversation's context, because it changes."""
        context = self._kept.pop((user_id, conversation_id), None)
        if context is not None:
            self._num_chars -= _size(context)


def _size(context: TurnContext) -> int:
    return sum(len(message.content) for message in context.path)
