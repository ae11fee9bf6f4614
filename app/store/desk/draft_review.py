"""Drafts that were used, of all users, for a review: what the model wrote beside what became of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence, Set
from typing import Any

from sqlalchemy import Select, select
from sqlalchemy.orm import Session

from app.domain.citations import citations_of
from app.domain.reply_drafts import DraftChange, DraftUse, UsedDraft
from app.domain.usage import Span
from app.domain.views import Page
from app.domain.word_changes import word_changes
from app.errors import InvalidInput
from app.store.db.database import Database
from app.store.db.desk_models import ReplyDraft
from app.store.db.models import Account, Conversation, Message
from app.store.db.rows import shown_name
from app.store.desk.cursors import decode_cursor, encode_cursor

MAX_PAGE = 50
MAX_OF_CONVERSATION = 20

WITHHELD = "This draft rests on documents that you may not read, so its text is not shown."

WithheldDrafts = Callable[[Session, str, Collection[str]], Set[str]]
"""Takes a reviewer and ids of drafts; returns those whose text the reviewer may not read."""


class DraftReviews:
    """The repository of used drafts, of all users. A draft that was not used cannot be read here."""

    def __init__(self, database: Database, withheld: WithheldDrafts) -> None:
        self._database = database
        self._withheld = withheld

    async def list(
        self, reviewer_id: str, span: Span, *, limit: int = 25, cursor: str | None = None
    ) -> Page[UsedDraft]:
        """Drafts that were used in a time span, latest use first.

        Args:
            cursor: the previous page's ``next_cursor``.

        Raises:
            InvalidInput: the limit or the cursor is not valid.
        """
        if not 1 <= limit <= MAX_PAGE:
            raise InvalidInput(f"limit is {limit}; it must be between 1 and {MAX_PAGE}.")
        wanted = _USED.where(ReplyDraft.used_at >= span.begins, ReplyDraft.used_at < span.ends)
        if cursor:
            at, id = decode_cursor(cursor)
            wanted = wanted.where((ReplyDraft.used_at < at) | ((ReplyDraft.used_at == at) & (ReplyDraft.id < id)))
        wanted = wanted.order_by(ReplyDraft.used_at.desc(), ReplyDraft.id.desc()).limit(limit + 1)
        rows, hidden = await self._read(reviewer_id, wanted)
        more, rows = len(rows) > limit, rows[:limit]
        next_cursor = encode_cursor(rows[-1].ReplyDraft.used_at, rows[-1].ReplyDraft.id) if more else None
        return Page(await asyncio.to_thread(_shown, rows, hidden), next_cursor)

    async def beside(self, reviewer_id: str, message_id: str) -> tuple[UsedDraft, ...]:
        """The used drafts of a message's conversation, the last :data:`MAX_OF_CONVERSATION`, latest use first."""
        conversation = select(Message.conversation_id).where(Message.id == message_id).scalar_subquery()
        wanted = _USED.where(ReplyDraft.conversation_id == conversation, ReplyDraft.used_at.is_not(None))
        wanted = wanted.order_by(ReplyDraft.used_at.desc(), ReplyDraft.id.desc()).limit(MAX_OF_CONVERSATION)
        return await asyncio.to_thread(_shown, *(await self._read(reviewer_id, wanted)))

    async def _read(self, reviewer_id: str, wanted: Select[Any]) -> tuple[Sequence[Any], Set[str]]:
        def work(session: Session) -> tuple[Sequence[Any], Set[str]]:
            rows = session.execute(wanted).all()
            return rows, self._withheld(session, reviewer_id, [row.ReplyDraft.id for row in rows])

        return await self._database.read(work)


_USED = (
    select(ReplyDraft, Conversation.title, shown_name(Account).label("user"))
    .join(Conversation, (Conversation.id == ReplyDraft.conversation_id) & Conversation.deletion.is_(None))
    .join(Account, (Account.id == Conversation.user_id) & (Account.kind == "person"))
)


def _shown(rows: Sequence[Any], hidden: Set[str]) -> tuple[UsedDraft, ...]:
    return tuple(_view(row.ReplyDraft, row.title, row.user, is_hidden=row.ReplyDraft.id in hidden) for row in rows)


def _view(draft: ReplyDraft, title: str, user: str, *, is_hidden: bool) -> UsedDraft:
    assert draft.final_text is not None
    assert draft.used_as is not None
    assert draft.used_at is not None
    cited = citations_of(f"{draft.text}\n\n{draft.final_text}", draft.sources or ())
    return UsedDraft(
        id=draft.id,
        conversation_id=draft.conversation_id,
        conversation_title=title,
        user=user,
        model=draft.model,
        message=draft.message,
        change=DraftChange(draft.change) if draft.change else None,
        created_at=draft.created_at,
        used_as=DraftUse(draft.used_as),
        used_at=draft.used_at,
        changes=() if is_hidden else word_changes(draft.text, draft.final_text),
        citations=() if is_hidden else cited,
        withheld=WITHHELD if is_hidden else None,
    )
