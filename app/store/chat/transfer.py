"""Exports and imports conversations. Every query takes the user's id."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any, TypeVar, cast

from sqlalchemy import Table, delete, func, insert, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import InstrumentedAttribute, Session

from app.domain.chat_settings import ChatSettings
from app.domain.conversation_document import (
    ConversationDocument,
    DraftDocument,
    MessageDocument,
    SourceDocument,
    ToolUseDocument,
    TurnDocument,
)
from app.domain.document_tree import latest_tip
from app.domain.ids import new_id
from app.domain.reply_drafts import DraftChange, DraftUse
from app.domain.storage import StorageLimits, StorageUse
from app.domain.tool_use import end_open
from app.domain.views import MessageStatus, Role
from app.store.chat.conversations import ClosedDocuments
from app.store.chat.folders import add_folders, folder_names
from app.store.chat.staged_import import DRAFT_COLUMNS, TURN_COLUMNS, StagedConversation, StagedImport
from app.store.chat.storage_use import storage_use
from app.store.db.database import Database
from app.store.db.desk_models import ReplyDraft
from app.store.db.models import (
    Account,
    Base,
    Conversation,
    ConversationTag,
    Message,
    Turn,
)
from app.store.db.rows import owned_conversation

Item = TypeVar("Item")

_BATCH = 20  #: most conversations read at once by an export
_BATCH_BYTES = 8 * 2**20  #: most bytes of a batch of more than one conversation
_ROWS = 500  #: values per statement: SQLite limits their number
_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class ImportCounts:
    """The result of an import."""

    imported: int
    already_there: int  #: conversations that were not imported again


class TransferRecords:
    """The repository of exports and imports."""

    def __init__(
        self, database: Database, closed_documents: ClosedDocuments, limits: StorageLimits | None = None
    ) -> None:
        """``limits``: storage limits per user; None is no limit."""
        self._database = database
        self._closed_documents = closed_documents
        self._limits = limits or StorageLimits()

    async def count(self, user_id: str) -> int:
        """How many conversations the user has."""
        is_own = (Conversation.user_id == user_id, Conversation.deletion.is_(None))
        counted = select(func.count()).select_from(Conversation).where(*is_own)
        return await self._database.read(lambda session: session.scalar(counted) or 0)

    async def read(self, user_id: str, conversation_id: str) -> ConversationDocument:
        """Reads one conversation. A reply in flight counts as interrupted, with its text so far.

        Of the sources of replies and drafts it has those that are cited and that the user may still read.

        Raises:
            NotFound: it is missing or another user's.
        """

        def work(session: Session) -> ConversationDocument:
            (document,) = _documents(session, [owned_conversation(session, user_id, conversation_id)])
            return document

        (document,) = await self._readable(user_id, [await self._database.read(work)])
        return document

    async def read_all(self, user_id: str, among: Collection[str] | None = None) -> AsyncIterator[ConversationDocument]:
        """Yields every conversation, oldest first, a few in memory at a time. Each one is a consistent snapshot.

        Their sources are as :meth:`read` returns them.

        Args:
            among: only those with these ids; None: all.
        """
        after = ""
        while True:

            def work(session: Session, after: str = after) -> list[ConversationDocument]:
                ids = _next_ids(session, user_id, after, among)
                batch = session.scalars(
                    select(Conversation).where(Conversation.id.in_(ids)).order_by(Conversation.id)
                ).all()
                return list(_documents(session, batch))

            documents = await self._readable(user_id, await self._database.read(work))
            if not documents:
                return
            after = documents[-1].id
            for document in documents:
                yield document
            del documents, document  # frees them before the next batch is read

    async def add(self, user_id: str, conversations: Iterable[ConversationDocument]) -> ImportCounts:
        """Imports validated conversations (:func:`app.transfer.reading.read_conversations`), all of them or none.

        Skips conversations that the user has already. Keeps their ids unless one is taken by another row.

        Args:
            conversations: iterated once, in a thread, outside of any transaction.

        Raises:
            LimitReached: they do not fit the user's storage quota.
            StorageUnavailable: there is no disk space to stage them, or the database cannot be written.
        """
        staged = StagedImport()
        try:
            await asyncio.to_thread(staged.stage, user_id, conversations)
            if self._limits != StorageLimits():
                # Checked before the write transaction, so that other writers do not wait for an import that is refused.
                await self._database.read(lambda session: _require_room(session, user_id, staged, self._limits))
            return await self._write(user_id, staged)
        finally:
            staged.close()

    async def _readable(self, user_id: str, documents: list[ConversationDocument]) -> list[ConversationDocument]:
        cited = {document_id for document in documents for document_id in document.source_documents()}
        if not cited:
            return documents
        closed = await self._closed_documents(user_id, cited)
        return [document.with_readable_sources(closed) for document in documents]

    async def _write(self, user_id: str, staged: StagedImport) -> ImportCounts:
        for attempt in range(_ATTEMPTS):
            try:
                return await self._database.write(lambda session: _add(session, user_id, staged, self._limits))
            except IntegrityError:
                # Another transaction has taken one of the ids since the check. The next attempt finds it taken.
                if attempt == _ATTEMPTS - 1:
                    raise
        raise AssertionError("unreachable")


def _documents(session: Session, conversations: Sequence[Conversation]) -> Iterator[ConversationDocument]:
    ids = [conversation.id for conversation in conversations]
    messages: dict[str, list[MessageDocument]] = {id: [] for id in ids}
    rows = session.execute(
        select(Message, Turn)
        .outerjoin(Turn, Turn.message_id == Message.id)
        .where(Message.conversation_id.in_(ids), Message.deletion.is_(None))
        .order_by(Message.position, Message.id)
    )
    for message, turn in rows:
        messages[message.conversation_id].append(_message_document(message, turn))
    tags: dict[str, list[str]] = {id: [] for id in ids}
    for id, tag in session.execute(
        select(ConversationTag.conversation_id, ConversationTag.tag).where(ConversationTag.conversation_id.in_(ids))
    ):
        tags[id].append(tag)
    drafts: dict[str, list[DraftDocument]] = {id: [] for id in ids}
    for draft in session.scalars(select(ReplyDraft).where(ReplyDraft.conversation_id.in_(ids)).order_by(ReplyDraft.id)):
        drafts[draft.conversation_id].append(_draft_document(draft))
    folders = folder_names(session, [row.folder_id for row in conversations])
    for row in conversations:
        found = messages[row.id]
        tip_is_there = any(message.id == row.tip_message_id for message in found)
        yield ConversationDocument.model_construct(
            id=row.id,
            title=row.title,
            title_by=cast(Any, row.title_by),
            pinned=row.pinned,
            archived=row.archived,
            tags=sorted(tags[row.id]),
            folder=folders.get(row.folder_id or ""),
            settings=ChatSettings.model_validate(row.settings),
            imported_from=row.imported_from,
            created_at=row.created_at,
            updated_at=row.updated_at,
            tip=row.tip_message_id if tip_is_there else latest_tip(found),
            drafts=drafts[row.id],
            messages=found,
        )


def _message_document(message: Message, turn: Turn | None) -> MessageDocument:
    return MessageDocument.model_construct(
        id=message.id,
        parent_id=message.parent_id,
        role=Role(message.role),
        status=_ended(message.status, MessageStatus.STREAMING),
        content=message.content,
        reasoning=message.reasoning or None,
        reasoning_seconds=message.reasoning_seconds,
        tool_uses=[ToolUseDocument.model_construct(**asdict(use)) for use in end_open(message.tool_uses or ())],
        sources=[SourceDocument.model_construct(**asdict(source)) for source in message.sources or ()],
        created_at=message.created_at,
        turn=_turn_document(turn) if turn is not None else None,
    )


def _draft_document(draft: ReplyDraft) -> DraftDocument:
    columns = {name: getattr(draft, name) for name in DRAFT_COLUMNS}
    columns["change"] = DraftChange(draft.change) if draft.change else None
    columns["used_as"] = DraftUse(draft.used_as) if draft.used_as else None
    return DraftDocument.model_construct(
        sources=[SourceDocument.model_construct(**asdict(source)) for source in draft.sources or ()], **columns
    )


def _turn_document(turn: Turn) -> TurnDocument:
    return TurnDocument.model_construct(
        status=_ended(turn.status, "running"),
        params=ChatSettings.model_validate(turn.params),
        **{name: getattr(turn, name) for name in TURN_COLUMNS},
    )


def _ended(status: str, unfinished: str) -> Any:
    """Exports a reply in flight as it would be after a crash: interrupted."""
    return "interrupted" if status == unfinished else status


def _next_ids(session: Session, user_id: str, after: str, among: Collection[str] | None) -> list[str]:
    """Ids of the next batch: as many as fit into memory together, at least one."""
    texts = (
        select(func.coalesce(func.sum(Message.stored_bytes), 0))
        .where(Message.conversation_id == Conversation.id)
        .scalar_subquery()
    )
    params = (
        select(func.coalesce(func.sum(Turn.stored_bytes), 0))
        .where(Turn.conversation_id == Conversation.id)
        .scalar_subquery()
    )
    drafts = (
        select(func.coalesce(func.sum(ReplyDraft.stored_bytes), 0))
        .where(ReplyDraft.conversation_id == Conversation.id)
        .scalar_subquery()
    )
    wanted = [Conversation.user_id == user_id, Conversation.deletion.is_(None), Conversation.id > after]
    if among is not None:
        wanted.append(Conversation.id.in_(among))
    found = session.execute(
        select(Conversation.id, texts + params + drafts).where(*wanted).order_by(Conversation.id).limit(_BATCH)
    )
    ids, total = list[str](), 0
    for id, size in found:
        total += int(size)
        if ids and total > _BATCH_BYTES:
            break
        ids.append(id)
    return ids


def _require_room(session: Session, user_id: str, staged: StagedImport, limits: StorageLimits) -> None:
    """Checks that the new conversations among these fit the quota, by their texts alone.

    Raises:
        LimitReached: they do not fit.
    """
    use = storage_use(session, user_id)
    limits.require_room(use)
    size, number = use.bytes, use.conversations
    for batch in staged:
        known = _known(session, user_id, batch)
        for conversation in batch:
            if known.isdisjoint({conversation.id, *conversation.origins}):
                number += 1
                size += conversation.size
        limits.require_kept(StorageUse(size, number, 0))


def _add(session: Session, user_id: str, staged: StagedImport, limits: StorageLimits) -> ImportCounts:
    # Concurrent imports of one user wait for each other, so that the second finds the first one's conversations.
    session.execute(select(Account.id).where(Account.id == user_id).with_for_update(key_share=True)).one()
    there = set[str]()  # names of conversations in this import so far
    imported = seen = 0
    rows: dict[type[Base], list[dict[str, Any]]] = {
        table: [] for table in (Conversation, Message, Turn, ConversationTag, ReplyDraft)
    }
    for batch in staged:
        seen += len(batch)
        _purge_deleted(session, user_id, batch)
        known = _known(session, user_id, batch)
        taken = _Taken(session, batch)
        new: list[StagedConversation] = []
        for conversation in batch:
            names = {conversation.id, *conversation.origins}
            if not names.isdisjoint(known) or not names.isdisjoint(there):
                continue
            there |= names
            new.append(conversation)
        imported += len(new)
        folder_ids = add_folders(session, user_id, {each.folder for each in new if each.folder is not None})
        for conversation in new:
            folder_id = folder_ids[conversation.folder] if conversation.folder is not None else None
            for table, values in conversation.rows_with(taken.ids_for(conversation), folder_id):
                rows[table].append(values)
        _insert(session, rows)
    if limits != StorageLimits() and imported:
        limits.require_kept(storage_use(session, user_id))
    return ImportCounts(imported, seen - imported)


def _known(session: Session, user_id: str, conversations: Sequence[StagedConversation]) -> set[str]:
    """Which of the conversations' ids and origins the user already has."""
    is_own = (Conversation.user_id == user_id) & Conversation.deletion.is_(None)
    ids = [conversation.id for conversation in conversations]
    origins = [origin for conversation in conversations for origin in conversation.origins]
    return _found(session, Conversation.id, ids, is_own) | _found(session, Conversation.imported_from, origins, is_own)


def _purge_deleted(session: Session, user_id: str, conversations: Sequence[StagedConversation]) -> None:
    """Deletes for good what the user has deleted of these: it is imported again, and undoing would bring it twice."""
    is_deleted = (Conversation.user_id == user_id, Conversation.deletion.is_not(None))
    if session.scalar(select(Conversation.id).where(*is_deleted).limit(1)) is None:
        return
    ids = [conversation.id for conversation in conversations]
    origins = [origin for conversation in conversations for origin in conversation.origins]
    found = _found(session, Conversation.id, ids, *is_deleted)
    for some in _chunks(origins):
        found.update(session.scalars(select(Conversation.id).where(Conversation.imported_from.in_(some), *is_deleted)))
    for some in _chunks(found):
        session.execute(delete(Conversation).where(Conversation.id.in_(some)))


class _Taken:
    """Ids that existing rows of any user have."""

    def __init__(self, session: Session, conversations: Sequence[StagedConversation]) -> None:
        rows = [row for conversation in conversations for row in conversation.rows]
        self._ids = set[str]().union(
            *(
                _found(session, column, [row["id"] for table, row in rows if table is column.class_])
                for column in (Conversation.id, Message.id, Turn.id, ReplyDraft.id)
            )
        )

    def ids_for(self, conversation: StagedConversation) -> Callable[[str], str]:
        """Maps a conversation's ids: unchanged, or all new in the same order if any of them is taken."""
        own = conversation.row_ids
        if self._ids.isdisjoint(own) and len(own) == len(set(own)):
            self._ids.update(own)
            return lambda id: id
        renamed = {id: new_id() for id in sorted(set(own))}
        return renamed.__getitem__


def _insert(session: Session, rows: dict[type[Base], list[dict[str, Any]]]) -> None:
    for table, values in rows.items():
        if values:
            # Into the table, not the class: the ORM would use a separate statement for each row with other nulls.
            session.execute(insert(cast(Table, table.__table__)), values)
            values.clear()


def _found(session: Session, column: InstrumentedAttribute[Any], values: Collection[str], *where: Any) -> set[str]:
    """Which of the values occur in this column."""
    found: set[str] = set()
    for some in _chunks(values):
        found.update(session.scalars(select(column).where(column.in_(some), *where)))
    return found


def _chunks(items: Iterable[Item]) -> Iterator[list[Item]]:
    remaining = iter(items)
    while chunk := list(islice(remaining, _ROWS)):
        yield chunk
