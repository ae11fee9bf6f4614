"""Drafts of replies to customers as they are stored: what the model wrote, and what the user made of it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from sqlalchemy import ColumnElement, delete, select, update
from sqlalchemy.orm import Session

from app.domain.ids import new_id
from app.domain.knowledge import Passage
from app.domain.reply_drafts import MAX_UNUSED, DraftChange, DraftUse
from app.errors import NotFound
from app.store.db.database import Database
from app.store.db.desk_models import ReplyDraft
from app.store.db.models import Conversation
from app.store.db.rows import change_rows, is_id, owned_conversation

NO_DRAFT = "There is no such draft. It may have been deleted, or newer ones have taken its place. Write a new one."


class DraftRecords:
    """The repository of drafts. Every query takes the user's id."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(
        self,
        user_id: str,
        conversation_id: str,
        *,
        message: str,
        change: DraftChange | None,
        model: str,
        sources: Sequence[Passage],
    ) -> str:
        """Stores a draft without a text, which :meth:`finish` adds; returns its id.

        The conversation's oldest unused drafts make room for it, see :data:`MAX_UNUSED`.

        Raises:
            NotFound: the conversation is missing or another user's.
        """
        draft_id = new_id()

        def work(session: Session) -> None:
            owned_conversation(session, user_id, conversation_id, lock=True)
            unused = (ReplyDraft.conversation_id == conversation_id, ReplyDraft.used_at.is_(None))
            kept = session.scalars(
                select(ReplyDraft.id).where(*unused).order_by(ReplyDraft.id.desc()).limit(MAX_UNUSED - 1)
            ).all()
            if len(kept) == MAX_UNUSED - 1:
                session.execute(delete(ReplyDraft).where(*unused, ReplyDraft.id < kept[-1]))
            session.add(
                ReplyDraft(
                    id=draft_id,
                    conversation_id=conversation_id,
                    message=message,
                    change=change,
                    model=model,
                    text="",
                    sources=tuple(sources) or None,
                    created_at=datetime.now(UTC),
                )
            )

        await self._database.write(work)
        return draft_id

    async def finish(self, user_id: str, draft_id: str, text: str) -> None:
        """Stores what the model wrote. Does nothing if the draft has been deleted meanwhile."""
        written = update(ReplyDraft).where(*_owned(user_id, draft_id)).values(text=text)
        await self._database.write(lambda session: change_rows(session, written))

    async def use(self, user_id: str, conversation_id: str, draft_id: str, text: str, used_as: DraftUse) -> None:
        """Stores what the user made of a draft and did with it. Of several uses, the last one is kept.

        Raises:
            NotFound: the conversation has no such draft, or is another user's.
        """

        def work(session: Session) -> None:
            used = (
                update(ReplyDraft)
                .where(*_owned(user_id, draft_id), ReplyDraft.conversation_id == conversation_id)
                .values(final_text=text, used_as=used_as, used_at=datetime.now(UTC))
            )
            if not is_id(draft_id) or not is_id(conversation_id) or not change_rows(session, used):
                raise NotFound(NO_DRAFT)

        await self._database.write(work)


def _owned(user_id: str, draft_id: str) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    conversations = select(Conversation.id).where(Conversation.user_id == user_id, Conversation.deletion.is_(None))
    return ReplyDraft.id == draft_id, ReplyDraft.conversation_id.in_(conversations)
