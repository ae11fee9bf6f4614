"""What is asked for: a new message, one edited, another reply, the rest of one."""

from __future__ import annotations

from dataclasses import dataclass

from app.domain.chat_settings import ChatSettings
from app.domain.text import clean_text
from app.errors import Conflict, InvalidInput
from app.store.chat.turn_contexts import MOVED_ON, BegunReply, TurnContext, TurnContexts
from app.turns.recent_contexts import RecentContexts


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A message to be answered, and where it stands."""

    text: str
    conversation_id: str | None  #: None begins one
    context: TurnContext
    message_id: str | None = None  #: of a message that is there already
    begun: BegunReply | None = None  #: the reply that is to go on
    follows_tip: bool = False  #: refuse if the conversation has moved on meanwhile


class Questions:
    """Finds out what a person asks.

    Args:
        recent: contexts that need not be read.
        max_message_chars: longest message that is accepted.
    """

    def __init__(self, contexts: TurnContexts, recent: RecentContexts, max_message_chars: int) -> None:
        self._contexts = contexts
        self._recent = recent
        self._max_chars = max_message_chars

    async def new(
        self,
        user_id: str,
        text: str,
        conversation_id: str | None,
        parent_id: str | None,
        tip_id: str | None = None,
        *,
        uses_settings: bool = True,
    ) -> Question:
        """A message that follows another, or begins a conversation.

        Args:
            uses_settings: it is answered with the conversation's own settings.

        Raises:
            Conflict: it follows the conversation's last message, and that is not ``tip_id``.
        """
        text = self._checked(text)
        if conversation_id is not None:
            context = None
            if parent_id is None and tip_id is not None and not uses_settings:
                context = self._recent.find(user_id, conversation_id, tip_id)
            if context is None:
                context = await self._contexts.context(user_id, conversation_id, parent_id)
            if parent_id is None and tip_id not in (None, context.parent_id):
                raise Conflict(MOVED_ON)
        elif parent_id is not None:
            raise InvalidInput("A message that follows another needs the conversation_id of that one.")
        else:
            context = TurnContext(parent_id=None, path=(), settings=ChatSettings(), streaming=False)
        return Question(text=text, conversation_id=conversation_id, context=context, follows_tip=parent_id is None)

    async def edited(self, user_id: str, message_id: str, text: str) -> Question:
        """A message of the person's in other words."""
        text = self._checked(text)
        asked = await self._contexts.asked(user_id, message_id)
        if asked.id != message_id:
            raise InvalidInput("Only your own messages can be edited. Ask for another reply instead.")
        return Question(text=text, conversation_id=asked.conversation_id, context=asked.context)

    async def again(self, user_id: str, message_id: str) -> Question:
        """The message once more, or the one that this is a reply to."""
        asked = await self._contexts.asked(user_id, message_id)
        return Question(
            text=asked.text, conversation_id=asked.conversation_id, context=asked.context, message_id=asked.id
        )

    async def begun(self, user_id: str, message_id: str) -> Question:
        """The rest of a reply."""
        begun = await self._contexts.begun(user_id, message_id)
        asked = begun.asked
        return Question(
            text=asked.text,
            conversation_id=asked.conversation_id,
            context=asked.context,
            message_id=asked.id,
            begun=begun,
        )

    def _checked(self, text: str) -> str:
        text = clean_text(text)
        if not text.strip():
            raise InvalidInput("The message is empty. Write something first.")
        limit = self._max_chars
        if len(text) > limit:
            raise InvalidInput(
                f"This message is {len(text):,} characters long; at most {limit:,} are accepted. "
                "Shorten it, or send it in parts."
            )
        return text
