"""From rows to views, and the queries that every repository needs."""

from __future__ import annotations

import re
from collections.abc import Sequence

from sqlalchemy import Row, literal, select
from sqlalchemy.orm import Session, aliased, undefer

from app.domain.chat_settings import ChatSettings
from app.domain.views import MessageStatus, MessageView, ReplyStats, Role
from app.errors import NotFound
from app.store.models import Conversation, Message, Turn

#: The second is None where the join found no turn, which SQLAlchemy's types do not say.
MessageRow = Row[tuple[Message, Turn]]

_ID = re.compile(r"[0-9a-f-]{36}")


def is_id(text: str) -> bool:
    """Whether ``text`` could be an id at all; databases choke on some of what it may be instead."""
    return _ID.fullmatch(text) is not None


def owned_conversation(session: Session, user_id: str, conversation_id: str, *, lock: bool = False) -> Conversation:
    """The conversation, where it is this user's. ``lock`` holds others back until the transaction ends.

    Raises:
        NotFound: it is missing or another's.
    """
    if not is_id(conversation_id):
        raise _no_conversation()
    query = select(Conversation).where(Conversation.id == conversation_id, Conversation.user_id == user_id)
    if lock:
        query = query.with_for_update()
    conversation = session.scalars(query).one_or_none()
    if conversation is None:
        raise _no_conversation()
    return conversation


def _no_conversation() -> NotFound:
    return NotFound("There is no such conversation. It may have been deleted.")


def path_to(
    session: Session, message_id: str | None, limit: int | None = None, *, token_ids: bool = False
) -> Sequence[MessageRow]:
    """The messages from the root (or ``limit`` messages up) to ``message_id``, oldest first, with their turns.

    The caller has checked whose they are, and asks for ``token_ids`` to read those.
    """
    if message_id is None:
        return ()
    path = (
        select(Message.id, Message.parent_id, literal(1).label("length"))
        .where(Message.id == message_id)
        .cte("path", recursive=True)
    )
    parent = aliased(Message)
    step = select(parent.id, parent.parent_id, path.c.length + 1).join(path, parent.id == path.c.parent_id)
    if limit is not None:
        step = step.where(path.c.length < limit)
    path = path.union_all(step)
    return session.execute(
        select(Message, Turn)
        .options(*([undefer(Message.token_ids)] if token_ids else []))
        .join(path, Message.id == path.c.id)
        .outerjoin(Turn, Turn.message_id == Message.id)
        .order_by(Message.position)
    ).all()


def message_view(row: MessageRow) -> MessageView:
    message: Message = row[0]
    turn: Turn | None = row[1]
    return MessageView(
        id=message.id,
        conversation_id=message.conversation_id,
        parent_id=message.parent_id,
        role=Role(message.role),
        status=MessageStatus(message.status),
        content=message.content,
        created_at=message.created_at,
        turn_id=turn.id if turn else None,
        stats=reply_stats(turn) if turn else None,
        error=turn.error if turn else None,
        omitted_messages=(turn.omitted_messages or 0) if turn else 0,
        context_length=turn.context_length if turn else None,
        has_system_prompt=ChatSettings.model_validate(turn.params).has_system_prompt if turn else False,
    )


def reply_stats(turn: Turn) -> ReplyStats | None:
    """What the turn took; None while it runs, or where its end was not seen."""
    if turn.finish_reason is None:
        return None
    return ReplyStats(
        prompt_tokens=turn.prompt_tokens or 0,
        cached_prompt_tokens=turn.cached_prompt_tokens or 0,
        completion_tokens=turn.completion_tokens or 0,
        ttft_ms=turn.ttft_ms or 0.0,
        itl_ms=turn.itl_ms or 0.0,
        tokens_per_second=turn.tokens_per_second or 0.0,
        finish_reason=turn.finish_reason,
    )
