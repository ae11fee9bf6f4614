"""Deletes messages with all their descendants, and whole conversations; each deletion can be undone for a while."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session, aliased

from app.domain.ids import first_id_of, new_id
from app.domain.storage import StorageLimits
from app.errors import Conflict, NotFound
from app.store.chat.storage_use import storage_use
from app.store.chat.tree import latest_below
from app.store.chat.turn_contexts import is_running
from app.store.db.database import Database
from app.store.db.models import Conversation, Message, SearchEntry, Turn
from app.store.db.notifications import Channel, notify
from app.store.db.rows import NO_CONVERSATION, change_rows, is_id, owned_conversation, owned_message

BATCH = 50  # conversations per transaction of the cleanup: other writers wait for one batch at most
TOO_LATE = "This cannot be undone any more: it is permanently deleted, or restored already."


@dataclass(frozen=True, slots=True)
class Deletion:
    """A deletion, which can be undone by its id."""

    deletion_id: str
    conversation_id: str
    messages: int  #: number of deleted messages, descendants included


@dataclass(frozen=True, slots=True)
class ConversationDeletion:
    """A deletion of whole conversations, which can be undone by its id."""

    deletion_id: str
    conversation_ids: tuple[str, ...]  #: those that were there


class Deletions:
    """The repository of deletions. Every query but ``purge`` takes the user's id."""

    def __init__(self, database: Database, limits: StorageLimits | None = None) -> None:
        """``limits``: storage limits per user, which what is restored must keep to; None is no limit."""
        self._database = database
        self._limits = limits or StorageLimits()

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

    async def delete_conversations(self, user_id: str, conversation_ids: Sequence[str]) -> ConversationDeletion:
        """Deletes conversations; those that are missing or another user's are left out.

        Asks the processes that write replies in them to stop. This process's own replies are for the caller to stop.

        Raises:
            NotFound: none of them is there.
        """
        wanted = sorted({id for id in conversation_ids if is_id(id)})
        deletion_id = new_id()

        def work(session: Session) -> tuple[str, ...]:
            here = (
                Conversation.id.in_(wanted),
                Conversation.user_id == user_id,
                Conversation.deletion.is_(None),
            )
            # Locks in the order in which checkpoints lock: first the turns.
            stopped = session.scalars(
                update(Turn)
                .where(Turn.status == "running", Turn.conversation_id.in_(select(Conversation.id).where(*here)))
                .values(stop_requested_at=func.coalesce(Turn.stop_requested_at, datetime.now(UTC)))
                .returning(Turn.id)
                .execution_options(synchronize_session=False)
            ).all()
            for turn_id in stopped:
                notify(session, Channel.STOP_REQUESTED, turn_id)
            deleted = session.scalars(
                update(Conversation)
                .where(*here)
                .values(deletion=deletion_id)
                .returning(Conversation.id)
                .execution_options(synchronize_session=False)
            ).all()
            if not deleted:
                raise NotFound(NO_CONVERSATION)
            return tuple(sorted(deleted))

        return ConversationDeletion(deletion_id, await self._database.write(work))

    async def undo(self, user_id: str, deletion_id: str) -> tuple[str, ...]:
        """Restores what a deletion deleted, and returns the ids of the conversations; shows a restored branch.

        Raises:
            NotFound: the user has no such deletion any more.
            Conflict: the message's parent was deleted later, or a reply is being written.
            LimitReached: the conversations no longer fit the storage quota.
        """

        def work(session: Session) -> tuple[str, ...]:
            if not is_id(deletion_id):
                raise NotFound(TOO_LATE)
            before = None if self._limits == StorageLimits() else storage_use(session, user_id)
            restored = session.scalars(
                update(Conversation)
                .where(Conversation.deletion == deletion_id, Conversation.user_id == user_id)
                .values(deletion=None)
                .returning(Conversation.id)
                .execution_options(synchronize_session=False)
            ).all()
            if not restored:
                return (self._undo_message(session, user_id, deletion_id),)
            if before is not None:
                self._limits.require_kept(storage_use(session, user_id), before)
            return tuple(sorted(restored))

        return await self._database.write(work)

    def _undo_message(self, session: Session, user_id: str, deletion_id: str) -> str:
        """Restores the messages of a deletion; returns their conversation's id."""
        top = session.scalars(
            select(Message)
            .join(Conversation, Conversation.id == Message.conversation_id)
            .where(Message.deletion == deletion_id, Conversation.user_id == user_id)
            .order_by(Message.position)
            .limit(1)
        ).one_or_none()
        if top is None:
            raise NotFound(TOO_LATE)
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

    async def purge(self, before: datetime) -> int:
        """Permanently deletes what all users deleted before ``before``; returns how many messages and conversations."""
        last = first_id_of(before)
        expired = delete(Message).where(Message.deletion < last)
        total = await self._database.write(lambda session: change_rows(session, expired))

        def some_conversations(session: Session) -> int:
            ids = session.scalars(select(Conversation.id).where(Conversation.deletion < last).limit(BATCH)).all()
            return change_rows(session, delete(Conversation).where(Conversation.id.in_(ids)))

        while (deleted := await self._database.write(some_conversations)) == BATCH:
            total += deleted
        return total + deleted


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
