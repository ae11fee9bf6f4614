"""What the next message of a conversation follows, where its last reply was written here a moment ago.

Most messages follow such a reply. Nothing is trusted that could have changed since: a context is found by the last
message that the person sees, and when the message is written the database is asked whether that is still the last.
"""

from __future__ import annotations

from collections import OrderedDict

from app.store.chat.turn_contexts import TurnContext

MAX_CHARS = 4_000_000
"""Of all messages that are kept."""


class RecentContexts:
    """The latest, of one event loop.

    Only for a process that writes to its database alone: elsewhere a reply may go on and keep its id.

    Args:
        max_chars: the oldest are forgotten where there would be more; 0 keeps none.
    """

    def __init__(self, max_chars: int = MAX_CHARS) -> None:
        self._max_chars = max_chars
        self._kept: OrderedDict[tuple[str, str], TurnContext] = OrderedDict()  # by user and conversation
        self._num_chars = 0

    def find(self, user_id: str, conversation_id: str, tip_id: str) -> TurnContext | None:
        """What a message after ``tip_id`` follows. Its settings are those of the last message, and may be old."""
        context = self._kept.get((user_id, conversation_id))
        return context if context is not None and context.parent_id == tip_id else None

    def keep(self, user_id: str, conversation_id: str, context: TurnContext) -> None:
        """The conversation has come to stand there."""
        self.forget(user_id, conversation_id)
        self._kept[user_id, conversation_id] = context
        self._num_chars += _size(context)
        while self._num_chars > self._max_chars:
            _, oldest = self._kept.popitem(last=False)
            self._num_chars -= _size(oldest)

    def forget(self, user_id: str, conversation_id: str) -> None:
        """It goes on."""
        context = self._kept.pop((user_id, conversation_id), None)
        if context is not None:
            self._num_chars -= _size(context)


def _size(context: TurnContext) -> int:
    return sum(len(message.content) for message in context.path)
