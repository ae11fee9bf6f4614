"""Prepares the rows of an import before the transaction that writes them.

SQLite has a single writer that all other writes wait for: it must not wait for a file to be parsed.
"""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from app.domain.conversation_document import ConversationDocument, DraftDocument, TurnDocument
from app.domain.document_tree import positions
from app.domain.sources import from_json as sources_from_json
from app.domain.storage import CONVERSATION_BYTES, MESSAGE_BYTES
from app.domain.tool_use import from_json
from app.errors import StorageUnavailable
from app.store.chat.conversations import settings_row
from app.store.db.desk_models import ReplyDraft
from app.store.db.models import Base, Conversation, ConversationTag, Message, Turn

ROWS_PER_BATCH = 500
CHARS_PER_BATCH = 4 * 2**20
#: Staged rows above this many bytes spill to a temporary file.
MAX_BYTES_IN_MEMORY = 4 * 2**20

#: Fields of a turn document that are columns of the same name.
TURN_COLUMNS = tuple(name for name in TurnDocument.model_fields if name not in ("status", "params"))
#: The same of a draft.
DRAFT_COLUMNS = tuple(name for name in DraftDocument.model_fields if name != "sources")
#: Columns that hold ids of rows of the same conversation.
_ID_COLUMNS = ("id", "conversation_id", "parent_id", "message_id", "tip_message_id")
#: Stands for the process that wrote a reply; no process has this id.
_OWNER = "import"

Row = tuple[type[Base], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class StagedConversation:
    """A conversation as rows, each after the rows that it refers to.

    Attributes:
        origins: names of its origin; the first is the one to store.
        row_ids: ids of the conversation, its messages, turns and drafts; some may be equal.
        folder: name of its folder; None: it is in none.
        size: bytes that count towards the user's storage quota, from its texts alone.
    """

    id: str
    origins: tuple[str, ...]
    row_ids: tuple[str, ...]
    folder: str | None
    size: int
    rows: tuple[Row, ...]

    def rows_with(self, id_of: Callable[[str], str], folder_id: str | None) -> Iterator[Row]:
        """The rows with new ids, in this folder. A conversation that gets a new id records its origin."""
        renamed = id_of(self.id) != self.id
        for table, row in self.rows:
            row = row | {name: id_of(row[name]) for name in _ID_COLUMNS if row.get(name) is not None}
            if table is Conversation:
                row["folder_id"] = folder_id
                if renamed:
                    row["imported_from"] = self.origins[0]
            yield table, row


class StagedImport:
    """The conversations of one import as rows, in a temporary file that is deleted with this object.

    Can be iterated any number of times; yields batches and holds one in memory at a time.
    """

    def __init__(self) -> None:
        self._file = tempfile.SpooledTemporaryFile(max_size=MAX_BYTES_IN_MEMORY)  # noqa: SIM115 - see close
        self._num_batches = 0

    def stage(self, user_id: str, conversations: Iterable[ConversationDocument]) -> None:
        """Stages validated conversations. Fails at the next batch if the object is closed meanwhile.

        Raises:
            StorageUnavailable: there is no disk space for them.
        """
        try:
            for batch in _batches(conversations):
                staged = [_staged(user_id, conversation) for conversation in batch]
                # Safe to unpickle: only this process can write the file, which has no name for another one to open.
                pickle.dump(staged, self._file, pickle.HIGHEST_PROTOCOL)
                self._num_batches += 1
        except OSError as error:
            raise StorageUnavailable(
                f"The conversations could not be written to a temporary file ({error.strerror}). Nothing was imported."
            ) from error

    def __iter__(self) -> Iterator[list[StagedConversation]]:
        self._file.seek(0)
        for _ in range(self._num_batches):
            yield pickle.load(self._file)

    def close(self) -> None:
        self._file.close()


def _batches(conversations: Iterable[ConversationDocument]) -> Iterator[list[ConversationDocument]]:
    batch, rows, chars = list[ConversationDocument](), 0, 0
    for conversation in conversations:
        batch.append(conversation)
        rows += 1 + len(conversation.messages) + len(conversation.drafts)
        chars += sum(message.chars for message in conversation.messages)
        chars += sum(len(text) for draft in conversation.drafts for _, text in draft.texts())
        if rows >= ROWS_PER_BATCH or chars >= CHARS_PER_BATCH:
            yield batch
            batch, rows, chars = [], 0, 0
    if batch:
        yield batch


def _staged(user_id: str, conversation: ConversationDocument) -> StagedConversation:
    messages = conversation.messages
    turns = [message.turn.id for message in messages if message.turn is not None]
    own = f"deskmate:{conversation.id}"
    return StagedConversation(
        id=conversation.id,
        origins=(conversation.imported_from, own) if conversation.imported_from else (own,),
        row_ids=(
            conversation.id,
            *(message.id for message in messages),
            *turns,
            *(draft.id for draft in conversation.drafts),
        ),
        folder=conversation.folder,
        size=CONVERSATION_BYTES
        + sum(MESSAGE_BYTES + sum(len(text.encode()) for _, text in message.texts()) for message in messages)
        + sum(len(text.encode()) for draft in conversation.drafts for _, text in draft.texts()),
        rows=tuple(_rows(user_id, conversation)),
    )


def _rows(user_id: str, conversation: ConversationDocument) -> Iterator[Row]:
    yield (
        Conversation,
        {
            "id": conversation.id,
            "user_id": user_id,
            "title": conversation.title,
            "title_by": conversation.title_by,
            "pinned": conversation.pinned,
            "archived": conversation.archived,
            "imported_from": conversation.imported_from,
            "settings": settings_row(conversation.settings),
            "tip_message_id": conversation.tip,
            "created_at": conversation.created_at,
            "updated_at": conversation.updated_at,
        },
    )
    for tag in conversation.tags:
        yield ConversationTag, {"conversation_id": conversation.id, "tag": tag}
    by_id = {message.id: message for message in conversation.messages}
    for message_id, position in positions(conversation).items():
        message = by_id[message_id]
        yield (
            Message,
            {
                "id": message.id,
                "conversation_id": conversation.id,
                "parent_id": message.parent_id,
                "role": message.role,
                "status": message.status,
                "content": message.content,
                "reasoning": message.reasoning,
                "reasoning_seconds": message.reasoning_seconds,
                "tool_uses": from_json([use.model_dump() for use in message.tool_uses]),
                "sources": sources_from_json(source.model_dump() for source in message.sources),
                "position": position,
                "created_at": message.created_at,
            },
        )
        if message.turn is not None:
            yield Turn, _turn_row(message.turn, conversation.id, message.id, len(message.content))
    for draft in conversation.drafts:
        yield ReplyDraft, _draft_row(draft, conversation.id)


def _draft_row(draft: DraftDocument, conversation_id: str) -> dict[str, Any]:
    return {
        **{name: getattr(draft, name) for name in DRAFT_COLUMNS},
        "conversation_id": conversation_id,
        "sources": sources_from_json(source.model_dump() for source in draft.sources) or None,
    }


def _turn_row(turn: TurnDocument, conversation_id: str, message_id: str, length: int) -> dict[str, Any]:
    return {
        **{name: getattr(turn, name) for name in TURN_COLUMNS},
        "id": turn.id,
        "conversation_id": conversation_id,
        "message_id": message_id,
        "status": turn.status,
        "params": settings_row(turn.params),
        "seed": turn.params.seed if turn.seed is None else turn.seed,  # older files have that of the settings
        "owner": _OWNER,
        "heartbeat_at": turn.ended_at or turn.created_at,
        "checkpoint_offset": length,
    }
