"""Deletes a message with all its descendants; the deletion can be undone for a while."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session, aliased

from app.domain.ids import first_id_of, new_id
from app.errors import Conflict, NotFound
from app.store.chat.tree import latest_below
from app.store.chat.turn_contexts import is_running
from app.store.db.database import Database
from app.store.db.models import Conversation, Message, SearchEntry
from app.store.db.rows import change_rows, is_id, owned_conversation, owned_message


@dataclass(frozen=True, slots=True)
class Deletion:
    """A deletion, which can be undone by its id."""

    deletion_id: str
    conversation_id: str
    messages: int  #: number of deleted messages, descendants included


class Deletions:
    """The repository of deleted messages. Every query but ``purge`` takes the user's id."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def delete(self, user_id: str, message_id: str) -> Deletion:
        """Deletes a message with all its descendants, then shows its latest sibling, or else its parent.

        Raises:
            NotFound: the message is missing or another user's.
            Conflict: a reply is being written in the conversation.
        """

        def work(session: Session) -> Deletion:
            message = owned_message(session, user_id, message_id)
            conversation = owned_conversation(session, user_id, message.conversation_id, lock=True)
            if is_running(session.connection(), conversation.id):
                raise Conflict("A reply is still being written in this conversation. Stop it first, then delete.")
            deletion_id = new_id()
            below = select(Message.id).where(Message.id == message.id).cte("below", recursive=True)
            child = aliased(Message)
            below = below.union_all(
                select(child.id).join(below, child.parent_id == below.c.id).where(child.deletion.is_(None))
            )
            deleted = session.scalars(
                update(Message)
                .where(Message.id.in_(select(below.c.id)))
                .values(deletion=deletion_id, indexed=False)
                .returning(Message.id)
                .execution_options(synchronize_session=False)
            ).all()
            session.execute(
                delete(SearchEntry).where(
                    SearchEntry.message_id.in_(select(Message.id).where(Message.deletion == deletion_id))
                )
            )
            if conversation.tip_message_id in deleted:
                conversation.tip_message_id = _tip_without(session, message)
            return Deletion(deletion_id, conversation.id, len(deleted))

        return await self._database.write(work)

    async def undo(self, user_id: str, deletion_id: str) -> str:
        """Restores a deletion, shows the restored branch, and returns the conversation's id.

        Raises:
            NotFound: the user has no such deletion any more.
            Conflict: the message's parent was deleted later, or a reply is being written.
        """

        def work(session: Session) -> str:
            top = None
            if is_id(deletion_id):
                top = session.scalars(
                    select(Message)
                    .join(Conversation, Conversation.id == Message.conversation_id)
                    .where(Message.deletion == deletion_id, Conversation.user_id == user_id)
                    .order_by(Message.position)
                    .limit(1)
                ).one_or_none()
            if top is None:
                raise NotFound(
                    "This cannot be undone any more: the messages are permanently deleted, or restored already."
                )
            conversation = owned_conversation(session, user_id, top.conversation_id, lock=True)
            if is_running(session.connection(), conversation.id):
                raise Conflict("A reply is still being written in this conversation. Stop it first, then undo.")
            parent = session.get(Message, top.parent_id) if top.parent_id is not None else None
            if parent is not None and parent.deletion is not None:
                raise Conflict("The message before this one was deleted later. Undo that first.")
            session.execute(
                update(Message)
                .where(Message.deletion == deletion_id)
                .values(deletion=None)
                .execution_options(synchronize_session=False)
            )
            conversation.tip_message_id = latest_below(session, top.id)
            return conversation.id

        return await self._database.write(work)

    async def purge(self, before: datetime) -> int:
        """Permanently deletes all users' messages that were deleted before ``before``; returns how many."""
        expired = delete(Message).where(Message.deletion < first_id_of(before))
        return await self._database.write(lambda session: change_rows(session, expired))


def _tip_without(session: Session, deleted: Message) -> str | None:
    """The message to show last, now that ``deleted`` is gone."""
    sibling = session.scalar(
        select(func.max(Message.id)).where(
            Message.conversation_id == deleted.conversation_id,
            Message.parent_id.is_(None) if deleted.parent_id is None else Message.parent_id == deleted.parent_id,
            Message.deletion.is_(None),
        )
    )
    return latest_below(session, sibling) if sibling is not None else deleted.parent_id
