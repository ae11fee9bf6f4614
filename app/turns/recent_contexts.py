"""Caches what the next message of a conversation starts from when this process has just written its last reply.

Most messages follow such a reply. Its context spares a read of the conversation, and its prompt is extended instead of
tokenizing the whole conversation again. The cache trusts nothing that could have changed: a context is looked up by the
last message that the user sees, and the write of the next message checks that it is still the last and, where another
process may have begun or resumed a reply, that none has; a prompt is extended only where the new one starts with its
text.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from app.store.chat.turn_contexts import TurnContext
from engine import PreparedPrompt

MAX_CHARS = 3_000_000
"""Capacity: characters over all cached messages, system prompts included. Above it the oldest entries are evicted.

With its token ids and its prompt, an entry takes some 20 bytes per character.
"""


@dataclass(frozen=True, slots=True)
class _Entry:
    context: TurnContext
    prompt: PreparedPrompt  #: of the last reply
    num_chars: int


class RecentContexts:
    """A cache of contexts and prompts that evicts the oldest write first. Belongs to one event loop.

    Args:
        max_chars: capacity; the oldest entries are evicted above it.
    """

    def __init__(self, *, max_chars: int = MAX_CHARS) -> None:
        self._max_chars = max_chars
        self._kept: OrderedDict[tuple[str, str], _Entry] = OrderedDict()  # by user and conversation
        self._num_chars = 0

    def find(self, user_id: str, conversation_id: str, tip_id: str) -> TurnContext | None:
        """The context of a message after ``tip_id``, or None. Its settings are the last message's, perhaps outdated."""
        entry = self._kept.get((user_id, conversation_id))
        return entry.context if entry is not None and entry.context.parent_id == tip_id else None

    def previous_prompt(self, user_id: str, conversation_id: str) -> PreparedPrompt | None:
        """The prompt of the conversation's last reply, or None."""
        entry = self._kept.get((user_id, conversation_id))
        return None if entry is None else entry.prompt

    def keep(self, user_id: str, conversation_id: str, context: TurnContext, prompt: PreparedPrompt) -> None:
        """Caches the conversation's latest context, and the prompt of the reply that it ends with."""
        self.forget(user_id, conversation_id)
        num_chars = sum(len(message.content) + len(message.reasoning) for message in context.path)
        # Not in the path, and often most of a prompt.
        num_chars += sum(len(message["content"]) for message in prompt.messages if message["role"] == "system")
        self._kept[user_id, conversation_id] = _Entry(context, prompt, num_chars)
        self._num_chars += num_chars
        while self._num_chars > self._max_chars:
            _, oldest = self._kept.popitem(last=False)
            self._num_chars -= oldest.num_chars

    def forget(self, user_id: str, conversation_id: str) -> None:
        """Evicts the conversation's entry, because it changes."""
        entry = self._kept.pop((user_id, conversation_id), None)
        if entry is not None:
            self._num_chars -= entry.num_chars
