"""Exports and imports: connects the API and the CLI with file formats and the database."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import IO, Literal, TypeVar

from app.domain.conversation_document import ConversationDocument, ResponseDocument
from app.errors import TooLarge
from app.store.chat.responses import Exchange, ResponseRecords
from app.store.chat.transfer import ImportCounts, TransferRecords
from app.store.db.rows import is_id
from app.transfer.filenames import file_name
from app.transfer.files import MIB, too_large
from app.transfer.markdown import as_markdown
from app.transfer.one_per_user import ExclusivePerUser
from app.transfer.reading import Progress, max_message_bytes, read_conversations
from app.transfer.subprocess_reader import read_isolated
from app.transfer.writing import as_document, as_markdown_archive

Item = TypeVar("Item")

ExportFormat = Literal["json", "markdown"]

#: Files up to this unpacked size are parsed in this process: starting another one takes longer.
SMALL_BYTES = MIB

JSON_TYPE = "application/json"
MARKDOWN_TYPE = "text/markdown; charset=utf-8"
ZIP_TYPE = "application/zip"


@dataclass(frozen=True, slots=True)
class Export:
    """An export file, generated while it is read."""

    name: str
    media_type: str
    pieces: AsyncIterator[bytes]


class Transfers:
    """Runs users' exports and imports.

    Args:
        responses: the responses that programs stored, which are exported with the conversations.
        max_import_mb: size limit of a file, and of its unpacked content, in MiB.
        max_message_chars: longest message that the chat accepts, in characters; an import accepts it too.
    """

    def __init__(
        self, records: TransferRecords, responses: ResponseRecords, *, max_import_mb: int, max_message_chars: int
    ) -> None:
        self.records = records
        self._responses = responses
        self._max_message_bytes = max_message_bytes(max_message_chars)
        self._max_bytes = max_import_mb * MIB
        # Parsing takes several times a file's size in memory. Two queues: a small file does not wait for a large one.
        self._small_imports = asyncio.Semaphore(1)
        self._large_imports = asyncio.Semaphore(1)
        self._importing = ExclusivePerUser(
            "Another file of yours is being imported already. Wait until it has finished."
        )
        self._exporting = ExclusivePerUser(
            "An export of all your conversations is running already. Wait until it has finished."
        )

    async def export_one(self, user_id: str, conversation_id: str, format: ExportFormat) -> Export:
        """One conversation as a document, or its shown branch as Markdown.

        Raises:
            NotFound: it is missing or another user's.
        """
        conversation = await self.records.read(user_id, conversation_id)
        ending = "json" if format == "json" else "md"
        name = file_name(conversation.title, conversation.created_at, ending)
        if format == "json":
            return Export(name, JSON_TYPE, as_document(_each(conversation)))
        return Export(name, MARKDOWN_TYPE, _each(as_markdown(conversation).encode()))

    async def export_some(self, user_id: str, conversation_ids: Sequence[str], format: ExportFormat) -> Export:
        """Some conversations, as :meth:`export_all`; those that are missing or another user's are left out.

        Raises:
            TooManyRequests: another export of the user's is running.
        """
        self._exporting.require_none(user_id)
        chosen = [id for id in conversation_ids if is_id(id)]
        return self._export(user_id, format, self.records.read_all(user_id, chosen))

    async def export_all(self, user_id: str, format: ExportFormat, progress: Progress | None = None) -> Export:
        """Everything as one document, or the conversations as an archive of Markdown. Reads while it is downloaded.

        Raises:
            TooManyRequests: another export of the user's is running.
        """
        self._exporting.require_none(user_id)
        total = await self.records.count(user_id)
        conversations = _followed(self.records.read_all(user_id), total, progress)
        responses = _response_documents(self._responses.read_all(user_id))
        return self._export(user_id, format, conversations, responses)

    def _export(
        self,
        user_id: str,
        format: ExportFormat,
        conversations: AsyncIterator[ConversationDocument],
        responses: AsyncIterator[ResponseDocument] | None = None,
    ) -> Export:
        """A file of many conversations; ``responses`` are in a document only."""
        now = datetime.now(UTC)
        if format == "json":
            pieces = self._exporting.around(user_id, as_document(conversations, responses))
            return Export(file_name("Deskmate", now, "json"), JSON_TYPE, pieces)
        pieces = self._exporting.around(user_id, as_markdown_archive(conversations))
        return Export(file_name("Deskmate", now, "zip"), ZIP_TYPE, pieces)

    def receiving(self, user_id: str) -> AbstractContextManager[None]:
        """Wraps the upload and import of a file. Each user can run one at a time.

        Raises (on entering):
            TooManyRequests: one is running.
        """
        return self._importing.during(user_id)

    def too_large(self, name: str = "The file") -> TooLarge:
        """The error for a file that exceeds the size limit."""
        return too_large(name, self._max_bytes)

    async def import_file(
        self, user_id: str, file: IO[bytes], name: str = "The file", progress: Progress | None = None
    ) -> ImportCounts:
        """Imports the conversations in a file, all or none. Skips those that the user has already.

        Args:
            file: an export of a supported program; see :func:`app.transfer.reading.read_conversations`.
            name: the file's name, for error messages.
            progress: called with the share of the file that is read.

        Raises:
            BrokenFile: the file is not valid; the text says where.
            TooLarge: it exceeds the size limit.
            LimitReached: the conversations do not fit the user's storage quota.
            StorageUnavailable: the database cannot be written.
            AppError: it could not be read because of a server fault.
        """
        given_up = threading.Event()

        def follow(fraction: float) -> None:
            if given_up.is_set():
                raise InterruptedError("the import was cancelled")
            if progress is not None:
                progress(fraction)

        def read_here() -> list[ConversationDocument]:
            return read_conversations(
                file,
                name,
                max_bytes=min(SMALL_BYTES, self._max_bytes),
                max_message_bytes=self._max_message_bytes,
                now=datetime.now(UTC),
                progress=follow,
            )

        async with self._small_imports:
            try:
                return await self.records.add(user_id, await asyncio.to_thread(read_here))
            except asyncio.CancelledError:
                given_up.set()  # a thread that continues would delay the process's exit
                raise
            except TooLarge:
                if self._max_bytes <= SMALL_BYTES:
                    raise
        async with self._large_imports:
            read = await read_isolated(
                file,
                name,
                max_bytes=self._max_bytes,
                max_message_bytes=self._max_message_bytes,
                now=datetime.now(UTC),
                progress=progress or (lambda _: None),
            )
            with closing(read):
                return await self.records.add(user_id, read)


async def _each(*items: Item) -> AsyncIterator[Item]:
    for item in items:
        yield item


async def _response_documents(exchanges: AsyncIterator[Exchange]) -> AsyncIterator[ResponseDocument]:
    async for exchange in exchanges:
        yield ResponseDocument.model_construct(input=list(exchange.input), response=exchange.body)


async def _followed(
    conversations: AsyncIterator[ConversationDocument], total: int, progress: Progress | None
) -> AsyncIterator[ConversationDocument]:
    done = 0
    async for conversation in conversations:
        yield conversation
        done += 1
        if progress is not None:
            progress(min(1.0, done / max(total, 1)))
