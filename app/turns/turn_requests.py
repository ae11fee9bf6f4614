"""Requests for a turn: a new message, an edited one, another reply, the rest of a reply, a decision about its tools."""

from __future__ import annotations

from dataclasses import dataclass

from app.domain.chat_settings import ChatSettings
from app.domain.text import clean_text
from app.domain.tool_use import ToolUse, ToolUseStatus, apply_decision, fail_running
from app.errors import Conflict, InvalidInput
from app.store.chat.turn_contexts import MOVED_ON, PartialReply, StoredReply, TurnContext, TurnContexts
from app.turns.recent_contexts import RecentContexts


@dataclass(frozen=True, slots=True)
class ToolDecision:
    """A user's decision about the calls of tools that wait for it."""

    allowed: frozenset[str]  #: ids of calls
    denied: frozenset[str]
    for_chat: frozenset[str] = frozenset()  #: those of the allowed whose tools are not asked about again in this chat


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRequest:
    """A message to answer, and its place in the conversation."""

    text: str
    conversation_id: str | None  #: None creates one
    context: TurnContext
    message_id: str | None = None  #: of a message that exists already
    partial_reply: PartialReply | None = None  #: the reply to resume, or the beginning of a new one
    is_branch: bool = False  #: ``partial_reply`` begins a new reply, a sibling of the existing ones
    edited: bool = False  #: the user has written that beginning
    tool_uses: tuple[ToolUse, ...] = ()  #: the calls in the reply to resume, with the user's decision
    decision: ToolDecision | None = None  #: that decision; None if there was nothing to decide
    follows_tip: bool = False  #: raise Conflict if the conversation moves on before the write

    @property
    def newly_allowed(self) -> tuple[str, ...]:
        """Names of the tools that the user has allowed for the whole conversation with this request."""
        if self.decision is None:
            return ()
        return tuple(use.name for use in self.tool_uses if use.id in self.decision.for_chat)


class TurnRequests:
    """Resolves a user's request to the message and its context.

    Args:
        recent: cached contexts, which spare a read.
        max_message_chars: longest message accepted, in characters.
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
    ) -> TurnRequest:
        """A message that follows another, or starts a conversation.

        Args:
            uses_settings: the reply uses the conversation's own settings.

        Raises:
            Conflict: the conversation's last message, which it is to follow, is not ``tip_id``.
        """
        text = self._checked(text)
        if conversation_id is not None:
            context = None
            if parent_id is None and tip_id is not None and not uses_settings:
                context = self._recent.find(user_id, conversation_id, tip_id)
            if context is None:
                context = await self._contexts.get_context(user_id, conversation_id, parent_id)
            if parent_id is None and tip_id not in (None, context.parent_id):
                raise Conflict(MOVED_ON)
        elif parent_id is not None:
            raise InvalidInput("A message that follows another needs the conversation_id of that one.")
        else:
            context = TurnContext(parent_id=None, path=(), settings=ChatSettings(), streaming=False)
        return TurnRequest(text=text, conversation_id=conversation_id, context=context, follows_tip=parent_id is None)

    async def edit(self, user_id: str, message_id: str, text: str) -> TurnRequest:
        """An edited version of a user's message."""
        text = self._checked(text)
        user_message = await self._contexts.get_user_message(user_id, message_id)
        if user_message.id != message_id:
            raise InvalidInput("Only your own messages can be edited. Ask for another reply instead.")
        return TurnRequest(text=text, conversation_id=user_message.conversation_id, context=user_message.context)

    async def regenerate(self, user_id: str, message_id: str) -> TurnRequest:
        """Another reply to the message, or to the message that this is a reply to."""
        user_message = await self._contexts.get_user_message(user_id, message_id)
        return TurnRequest(
            text=user_message.text,
            conversation_id=user_message.conversation_id,
            context=user_message.context,
            message_id=user_message.id,
        )

    async def resume(self, user_id: str, message_id: str) -> TurnRequest:
        """The rest of a partial reply."""
        partial_reply = await self._contexts.get_partial_reply(user_id, message_id)
        return _resumed(partial_reply, fail_running(partial_reply.tool_uses))

    async def rewrite(self, user_id: str, message_id: str, text: str) -> TurnRequest:
        """Another version of a reply that begins with the user's text; the model goes on from its end."""
        text = self._checked(text)
        reply = await self._contexts.get_reply(user_id, message_id)
        if reply.tool_uses:
            raise InvalidInput("A reply with calls of tools cannot be edited. Ask for another reply instead.")
        return branched(reply, text, (), edited=True)

    async def resume_as_version(self, user_id: str, message_id: str) -> TurnRequest:
        """Another version of a reply that was cut short, which begins with all of it; messages may follow the reply."""
        reply = await self._contexts.get_reply(user_id, message_id, resumes=True)
        if reply.tool_uses or not reply.text.strip():
            raise InvalidInput("Only a reply with text, and without calls of tools, can go on as another version.")
        return branched(reply, reply.text, reply.token_ids, num_tokens=reply.num_tokens)

    async def decide(self, user_id: str, message_id: str, decision: ToolDecision) -> TurnRequest:
        """The rest of a reply whose calls of tools have waited for the user's decision."""
        partial_reply = await self._contexts.get_partial_reply(user_id, message_id, decides=True)
        waiting = {use.id for use in partial_reply.tool_uses if use.status is ToolUseStatus.WAITING}
        if decision.allowed & decision.denied:
            raise InvalidInput("A call is both allowed and denied. Decide for one.")
        if waiting != decision.allowed | decision.denied:
            raise InvalidInput(
                "Decide about each call that waits, and about no other. Waiting: " + ", ".join(sorted(waiting)) + "."
            )
        return _resumed(partial_reply, apply_decision(partial_reply.tool_uses, decision.allowed), decision)

    def _checked(self, text: str) -> str:
        text = clean_text(text)
        if not text.strip():
            raise InvalidInput("The message is empty. Write something first.")
        check_length(text, self._max_chars)
        return text


def check_length(text: str, max_chars: int) -> None:
    """Raises InvalidInput if a message is longer than it may be."""
    if len(text) > max_chars:
        raise InvalidInput(
            f"This message is {len(text):,} characters long; at most {max_chars:,} are accepted. "
            "Shorten it, or send it in parts."
        )


def branched(
    reply: StoredReply, text: str, token_ids: tuple[int, ...], *, num_tokens: int | None = None, edited: bool = False
) -> TurnRequest:
    """A new version of a reply that begins with ``text``.

    Args:
        num_tokens: of the text, that the model has written; None: all of ``token_ids``.
    """
    message = reply.user_message
    beginning = PartialReply(
        turn_id="",
        message_id="",
        user_message=message,
        text=text,
        token_ids=token_ids,
        num_tokens=len(token_ids) if num_tokens is None else num_tokens,
        sources=reply.sources,
    )
    return TurnRequest(
        text=message.text,
        conversation_id=message.conversation_id,
        context=message.context,
        message_id=message.id,
        partial_reply=beginning,
        is_branch=True,
        edited=edited,
    )


def _resumed(
    partial_reply: PartialReply, tool_uses: tuple[ToolUse, ...], decision: ToolDecision | None = None
) -> TurnRequest:
    user_message = partial_reply.user_message
    return TurnRequest(
        text=user_message.text,
        conversation_id=user_message.conversation_id,
        context=user_message.context,
        message_id=user_message.id,
        partial_reply=partial_reply,
        tool_uses=tool_uses,
        decision=decision,
    )
