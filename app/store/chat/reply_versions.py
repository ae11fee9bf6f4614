"""Queries on the versions of a reply: their settings, in what they differ, and which are compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import ColumnElement, Update, select, update
from sqlalchemy.orm import Session, aliased

from app.domain.chat_settings import ChatSettings
from app.domain.versions import Origin, differences_of
from app.domain.views import UNKNOWN_MODEL, Role, SettingDifference, VersionView
from app.errors import InvalidInput, NotFound
from app.store.chat.feedback import feedback_of
from app.store.chat.tree import MessageRow, siblings_of
from app.store.db.models import Message, Turn
from app.store.db.rows import change_rows, message_view, owned_message


def differences_on_path(
    session: Session, rows: Sequence[MessageRow], siblings: Mapping[str, Sequence[str]]
) -> dict[str, tuple[SettingDifference, ...]]:
    """For each reply of a path that has versions: in what it differs from the one before, or else after it."""
    neighbours: dict[str, str] = {}
    for message, turn in rows:
        ids = siblings[message.id]
        if turn is not None and len(ids) > 1:
            at = ids.index(message.id)
            neighbours[message.id] = ids[at - 1] if at > 0 else ids[1]
    if not neighbours:
        return {}
    others = {
        turn.message_id: turn
        for turn in session.scalars(select(Turn).where(Turn.message_id.in_(set(neighbours.values()))))
    }
    return {
        message.id: differences_of(_origin(turn), _origin(others[neighbours[message.id]]))
        for message, turn in rows
        if neighbours.get(message.id) in others
    }


def versions_of(session: Session, user_id: str, message_id: str, ids: Sequence[str]) -> tuple[VersionView, ...]:
    """See :meth:`Conversations.versions`."""
    message = owned_message(session, user_id, message_id)
    if message.role != Role.ASSISTANT:
        raise InvalidInput("Only replies have settings that they were written with.")
    wanted = ids or [message.id]
    views = _views(session, user_id, message, Message.id.in_(wanted))
    if missing := set(wanted) - {view.message.id for view in views}:
        raise NotFound(f"{min(missing)} is no version of this reply. It may have been deleted.")
    return views


def comparison_of(session: Session, user_id: str, last: MessageRow) -> tuple[VersionView, ...]:
    """The replies that the last message of a conversation is compared with, itself included; empty if with none."""
    message, turn = last
    if turn is None or turn.comparison_id is None:
        return ()
    views = _views(session, user_id, message, Turn.comparison_id == turn.comparison_id)
    return views if len(views) > 1 else ()  # the ids of replies sort by time, and so in the order of the columns


def end_comparison(session: Session, shown: Message) -> None:
    """One of the compared replies is kept: all of them are versions like any others from now on."""
    change_rows(session, comparison_ended(shown.conversation_id, shown.id))


def comparison_ended(conversation_id: str, message_id: str) -> Update:
    """Looks among the turns of the conversation, which have an index: comparisons have none."""
    kept = aliased(Turn)
    compared = select(kept.comparison_id).where(kept.message_id == message_id, kept.comparison_id.is_not(None))
    of_it = (Turn.conversation_id == conversation_id, Turn.comparison_id.in_(compared))
    return update(Turn).where(*of_it).values(comparison_id=None)


def _views(session: Session, user_id: str, message: Message, which: ColumnElement[bool]) -> tuple[VersionView, ...]:
    rows = session.execute(
        select(Message, Turn)
        .outerjoin(Turn, Turn.message_id == Message.id)
        .where(
            Message.conversation_id == message.conversation_id,
            Message.parent_id == message.parent_id,
            Message.deletion.is_(None),
            which,
        )
        .order_by(Message.id)
    ).all()
    siblings = siblings_of(session, [message])[message.id]
    feedback = feedback_of(session, user_id, [each.id for each, _ in rows])
    return tuple(
        VersionView(message_view(each, turn, siblings, feedback.get(each.id)), _origin(turn).settings)
        for each, turn in rows
    )


def _origin(turn: Turn | None) -> Origin:
    if turn is None:
        return Origin(ChatSettings())
    model = turn.model if turn.model != UNKNOWN_MODEL else None
    return Origin(ChatSettings.model_validate(turn.params), model)
