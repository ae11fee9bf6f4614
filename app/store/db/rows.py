"""Converts rows to views; queries shared by all repositories."""

from __future__ import annotations

import re
from collections.abc import Sequence

from sqlalchemy import ColumnElement, CursorResult, Delete, Select, Update, bindparam, func, literal_column, select
from sqlalchemy.orm import Session

from app.domain.chat_settings import ChatSettings
from app.domain.citations import citations_of
from app.domain.feedback import FeedbackView
from app.domain.views import UNKNOWN_MODEL, MessageStatus, MessageView, ReplyStats, Role
from app.errors import NotFound
from app.store.db.models import Account, Conversation, Message, Turn, table_of

_ID = re.compile(r"[0-9a-f-]{36}")

NO_CONVERSATION = "There is no such conversation. It may have been deleted."

#: The status of a turn whose reply is being written. A constant in a statement's text, not a parameter: a partial index
#: needs that, whatever plan PostgreSQL keeps.
RUNNING: ColumnElement[str] = literal_column("'running'")


def count_running_of(parameter: str) -> Select[tuple[int]]:
    """The query that counts the running replies of a user, whose id is the parameter of this name.

    Looks up the owner of each running reply, which are few: a join may read all of the user's conversations.
    """
    conversation, turn = table_of(Conversation), table_of(Turn)
    owner = select(conversation.c.user_id).where(conversation.c.id == turn.c.conversation_id).scalar_subquery()
    return select(func.count()).select_from(turn).where(turn.c.status == RUNNING, bindparam(parameter) == owner)


def change_rows(session: Session, statement: Update | Delete) -> int:
    """Executes a statement and returns how many rows it changed. Objects that the session holds stay as they are."""
    done = session.execute(statement.execution_options(synchronize_session=False))
    assert isinstance(done, CursorResult)
    return done.rowcount


def shown_name(account: type[Account]) -> ColumnElement[str]:
    """The name that other users see."""
    return func.coalesce(account.display_name, account.name)


def is_id(text: str) -> bool:
    """Whether ``text`` is shaped like an id. Some other strings make the databases fail."""
    return _ID.fullmatch(text) is not None


# Built once: constructing a statement costs more than executing it.
_OWNED = select(Conversation).where(
    Conversation.id == bindparam("conversation_id"),
    Conversation.user_id == bindparam("user_id"),
    Conversation.deletion.is_(None),
)
_OWNED_LOCKED = _OWNED.with_for_update(key_share=True)  # inserting a row that refers to it does not wait


def owned_conversation(session: Session, user_id: str, conversation_id: str, *, lock: bool = False) -> Conversation:
    """The user's conversation. ``lock`` blocks other writers of the row until the transaction ends.

    Raises:
        NotFound: it is missing or another user's.
    """
    if not is_id(conversation_id):
        raise NotFound(NO_CONVERSATION)
    parameters = {"conversation_id": conversation_id, "user_id": user_id}
    conversation = session.scalars(_OWNED_LOCKED if lock else _OWNED, parameters).one_or_none()
    if conversation is None:
        raise NotFound(NO_CONVERSATION)
    return conversation


def owned_message(session: Session, user_id: str, message_id: str) -> Message:
    """The message, if it is in one of the user's conversations.

    Raises:
        NotFound: it is missing or another user's.
    """
    message = None
    if is_id(message_id):
        message = session.scalars(
            select(Message)
            .join(Conversation, Conversation.id == Message.conversation_id)
            .where(
                Message.id == message_id,
                Message.deletion.is_(None),
                Conversation.user_id == user_id,
                Conversation.deletion.is_(None),
            )
        ).one_or_none()
    if message is None:
        raise NotFound("There is no such message. It or its conversation may have been deleted.")
    return message


def message_view(
    message: Message, turn: Turn | None, siblings: Sequence[str], feedback: FeedbackView | None = None
) -> MessageView:
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
        model=turn.model if turn and turn.model != UNKNOWN_MODEL else None,
        has_system_prompt=ChatSettings.model_validate(turn.params).has_system_prompt if turn else False,
        siblings=tuple(siblings),
        feedback=feedback,
        reasoning=message.reasoning or "",
        reasoning_seconds=message.reasoning_seconds,
        tool_uses=message.tool_uses or (),
        citations=citations_of(message.content, message.sources or ()),
        seed=turn.seed if turn else None,
        edited=turn.edited if turn else False,
    )


def reply_stats(turn: Turn) -> ReplyStats | None:
    """The turn's statistics; None while it runs or if its end was not recorded."""
    if turn.finish_reason is None:
        return None
    return ReplyStats(
        prompt_tokens=turn.prompt_tokens or 0,
        cached_prompt_tokens=turn.cached_prompt_tokens,
        completion_tokens=turn.completion_tokens or 0,
        ttft_ms=turn.ttft_ms or 0.0,
        itl_ms=turn.itl_ms or 0.0,
        tokens_per_second=turn.tokens_per_second or 0.0,
        finish_reason=turn.finish_reason,
        tokenize_ms=turn.tokenize_ms,
        queue_ms=turn.queue_ms,
        decode_ms=turn.decode_ms,
        delivery_ms=turn.delivery_ms,
        draft_tokens=turn.draft_tokens,
        accepted_draft_tokens=turn.accepted_draft_tokens,
    )
