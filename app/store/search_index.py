"""Keeping the search entries as the titles and messages are, behind everybody's back.

Whoever writes a title or a message leaves ``indexed`` false, and nothing else: no writer waits for the index, and none
can forget it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from sqlalchemy import Select, delete, exists, insert, select, update
from sqlalchemy.orm import Session

from app.domain.views import MessageStatus
from app.store.database import Database
from app.store.models import Conversation, Message, SearchEntry
from app.store.search import entries

BATCH_TEXTS = 200
BATCH_CHARS = 300_000  # some tenths of a second, for which SQLite's other writers wait

_TITLES: Select[Any] = select(Conversation.id, Conversation.user_id, Conversation.title).where(~Conversation.indexed)
_MESSAGES: Select[Any] = (
    select(Message.id, Message.conversation_id, Conversation.user_id, Message.content)
    .join(Conversation, Conversation.id == Message.conversation_id)
    .where(~Message.indexed, Message.deletion.is_(None), Message.status != MessageStatus.STREAMING)
)


class SearchIndex:
    """What is to be found by searching, and what is not there yet. One of each per process and database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        # Rows that are being indexed are passed over by others: whoever searches must wait for them.
        self._one_at_a_time = asyncio.Lock()

    async def catch_up(self) -> bool:
        """Index some of what is new or has changed; whether there may be more."""
        async with self._one_at_a_time:
            if not await self._database.read(_is_behind):
                return False
            return await self._database.write(_index_some)


def _is_behind(session: Session) -> bool:
    return any(session.scalar(select(exists(waiting.correlate(None)))) for waiting in (_TITLES, _MESSAGES))


def _index_some(session: Session) -> bool:
    # Another process on the same database may be at it too: each takes what the other has not. Both rows that an entry
    # refers to are locked at once or passed over, so that nobody who holds one of them is ever waited for.
    titles = session.execute(
        _TITLES.limit(BATCH_TEXTS).with_for_update(skip_locked=True, key_share=True, of=Conversation)
    ).all()
    for id, user_id, title in titles:
        session.execute(delete(SearchEntry).where(SearchEntry.conversation_id == id, SearchEntry.message_id.is_(None)))
        _add(session, user_id, title, conversation_id=id, message_id=None)
    _mark_indexed(session, Conversation, (row.id for row in titles))

    indexed, chars = [], 0
    messages = (
        _MESSAGES.order_by(Message.id)
        .limit(BATCH_TEXTS)
        .with_for_update(skip_locked=True, key_share=True, of=(Message, Conversation))
    )
    for id, conversation_id, user_id, content in session.execute(messages):
        session.execute(delete(SearchEntry).where(SearchEntry.message_id == id))
        _add(session, user_id, content, conversation_id=conversation_id, message_id=id)
        indexed.append(id)
        chars += len(content)
        if chars > BATCH_CHARS:
            break
    _mark_indexed(session, Message, indexed)
    return len(titles) == BATCH_TEXTS or len(indexed) == BATCH_TEXTS or chars > BATCH_CHARS


def _add(session: Session, user_id: str, text: str, *, conversation_id: str, message_id: str | None) -> None:
    rows = [
        {"conversation_id": conversation_id, "message_id": message_id, "words": words}
        for words in entries(session.get_bind().dialect.name, user_id, text)
    ]
    if rows:
        session.execute(insert(SearchEntry), rows)


def _mark_indexed(session: Session, model: type[Conversation] | type[Message], ids: Iterable[str]) -> None:
    done = list(ids)
    if done:
        session.execute(
            update(model).where(model.id.in_(done)).values(indexed=True).execution_options(synchronize_session=False)
        )
