"""Updates the search index in the background, from titles and messages that are not indexed yet.

A writer of a title or a message only leaves ``indexed`` false, so none computes the index or can forget it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import Delete, Select, Update, delete, exists, insert, select, true, update
from sqlalchemy.orm import Session

from app.domain.views import MessageStatus
from app.store.chat.search import entries
from app.store.db.database import Database, is_postgres
from app.store.db.models import Conversation, Message, SearchEntry, table_of
from app.store.db.prepared_statements import JsonRows, Prepared, is_among

BATCH_TEXTS = 200
BATCH_CHARS = 300_000  # takes some tenths of a second, during which SQLite's other writers wait

_TITLES: Select[Any] = select(Conversation.id, Conversation.user_id, Conversation.title).where(~Conversation.indexed)
_MESSAGES: Select[Any] = select(Message.id, Message.conversation_id, Message.content).where(
    ~Message.indexed, Message.deletion.is_(None), Message.status != MessageStatus.STREAMING
)


class SearchIndex:
    """Brings the search index up to date. One per process and database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        # Concurrent passes skip rows that are being indexed, and a search must find them: so one pass at a time.
        self._one_at_a_time = asyncio.Lock()

    async def catch_up(self) -> bool:
        """Indexes one batch of new or changed texts. Returns whether there may be more."""
        async with self._one_at_a_time:
            has_titles, has_messages = await self._database.read(_find_backlogs)
            # A transaction each: titles lock their conversations, and release them before messages are indexed.
            more_titles = has_titles and await self._database.write(_index_titles)
            more_messages = has_messages and await self._database.write(_index_messages)
            return more_titles or more_messages


def _find_backlogs(session: Session) -> tuple[bool, bool]:
    """Whether titles are to be indexed, and whether messages are."""
    titles, messages = (bool(session.scalar(select(exists(one.correlate(None))))) for one in (_TITLES, _MESSAGES))
    return titles, messages


# Another process on the same database may index too: each skips the other's rows. A row that an entry refers to is
# locked or skipped as well, so that no transaction that holds one is ever waited for.


def _index_titles(session: Session) -> bool:
    dialect = session.get_bind().dialect.name
    titles = session.execute(
        _TITLES.limit(BATCH_TEXTS).with_for_update(skip_locked=True, key_share=True, of=Conversation)
    ).all()
    found = [_entry(id, None, words) for id, user_id, title in titles for words in entries(dialect, user_id, title)]
    _replace(session, _TITLE_ENTRIES, _TITLE_IS_INDEXED, [row.id for row in titles], found)
    return len(titles) == BATCH_TEXTS


def _index_messages(session: Session) -> bool:
    dialect = session.get_bind().dialect.name
    indexed, found, chars = list[str](), list[dict[str, Any]](), 0
    for id, conversation_id, user_id, content in _lock_messages(session):
        found += [_entry(conversation_id, id, words) for words in entries(dialect, user_id, content)]
        indexed.append(id)
        chars += len(content)
        if len(indexed) == BATCH_TEXTS or chars > BATCH_CHARS:
            break
    _replace(session, _MESSAGE_ENTRIES, _MESSAGE_IS_INDEXED, indexed, found)
    return len(indexed) == BATCH_TEXTS or chars > BATCH_CHARS


def _lock_messages(session: Session) -> Iterator[tuple[str, str, str, str]]:
    """Locks messages to be indexed, the oldest first: their ids, conversations, owners and texts.

    Goes past those whose conversations another transaction deletes, however many they are: newer ones must be found.
    """
    last_id, locked = "", set[str]()  # conversations that another transaction has locked
    while True:
        messages = session.execute(
            _MESSAGES.where(Message.id > last_id, Message.conversation_id.not_in(locked))
            .order_by(Message.id)
            .limit(BATCH_TEXTS)
            .with_for_update(skip_locked=True, key_share=True, of=Message)
        ).all()
        # KEY SHARE, which a foreign key takes too: a deletion of the conversation waits for it, a message does not.
        held = select(Conversation.id, Conversation.user_id).where(
            Conversation.id.in_(sorted({row.conversation_id for row in messages}))
        )
        held = held.with_for_update(read=True, key_share=True, skip_locked=True)
        owners = dict(session.execute(held).tuples().all())
        for id, conversation_id, content in messages:
            if conversation_id in owners:
                yield id, conversation_id, owners[conversation_id], content
        if len(messages) < BATCH_TEXTS:
            return
        last_id = messages[-1].id
        locked |= {row.conversation_id for row in messages} - owners.keys()


def _entry(conversation_id: str, message_id: str | None, words: str) -> dict[str, Any]:
    return {"conversation_id": conversation_id, "message_id": message_id, "words": words}


def _replace(session: Session, old: Delete, mark: Update, ids: Sequence[str], new: Sequence[dict[str, Any]]) -> None:
    """Replaces old entries by new ones and marks their rows as indexed, with one statement each."""
    if ids:
        session.execute(old, {"ids": ids})
        session.execute(mark, {"ids": ids})
    if new and is_postgres(session):
        _NEW_ENTRIES_POSTGRES.run(session.connection(), {"entries": _ENTRIES.parameter(one.values() for one in new)})
    elif new:
        session.execute(_NEW_ENTRY, new)


# Compiled once and without the ORM: all messages pass here while replies are being written.
_ENTRY = table_of(SearchEntry)
_NEW_ENTRY = insert(_ENTRY)
_ENTRIES = JsonRows("entries", {name: _ENTRY.c[name].type for name in ("conversation_id", "message_id", "words")})
_NEW_ENTRIES_POSTGRES = Prepared(_NEW_ENTRY.from_select(_ENTRIES.table.c.keys(), select(*_ENTRIES.table.c)))
_TITLE_ENTRIES = delete(_ENTRY).where(is_among(SearchEntry.conversation_id, "ids"), _ENTRY.c.message_id.is_(None))
_MESSAGE_ENTRIES = delete(_ENTRY).where(is_among(SearchEntry.message_id, "ids"))
_TITLE_IS_INDEXED = update(table_of(Conversation)).where(is_among(Conversation.id, "ids")).values(indexed=true())
_MESSAGE_IS_INDEXED = update(table_of(Message)).where(is_among(Message.id, "ids")).values(indexed=true())
