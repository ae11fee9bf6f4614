"""Streams conversations as the bytes of an export file, which may be larger than memory."""

from __future__ import annotations

import asyncio
import io
import zipfile
from collections.abc import AsyncIterator, Iterator
from datetime import datetime

from app.domain.conversation_document import (
    ConversationDocument,
    ResponseDocument,
    conversation_text,
    document_end,
    document_start,
    response_text,
)
from app.transfer.filenames import UniqueNames, file_name
from app.transfer.markdown import as_markdown


async def as_document(
    conversations: AsyncIterator[ConversationDocument], responses: AsyncIterator[ResponseDocument] | None = None
) -> AsyncIterator[bytes]:
    """Deskmate's own format (docs/export-format.md)."""
    yield document_start().encode()
    first = True
    async for conversation in conversations:
        for text in _large_pieces(conversation_text(conversation, first=first)):
            yield text.encode()
        first = False
    if responses is not None:
        first = True
        async for response in responses:
            yield response_text(response, first=first).encode()
            first = False
    yield document_end().encode()


async def as_markdown_archive(conversations: AsyncIterator[ConversationDocument]) -> AsyncIterator[bytes]:
    """A ZIP archive with one Markdown file per conversation."""
    written = _Drained()
    names = UniqueNames()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED) as archive:
        async for conversation in conversations:
            name = names.unique(file_name(conversation.title, conversation.created_at, "md"))
            entry = zipfile.ZipInfo(name, _zip_time(conversation.updated_at))
            entry.compress_type = zipfile.ZIP_DEFLATED
            await asyncio.to_thread(archive.writestr, entry, as_markdown(conversation))
            yield written.drain()
    yield written.drain()


def _zip_time(moment: datetime) -> tuple[int, int, int, int, int, int]:
    """A ZIP timestamp. The format supports the years 1980 to 2107."""
    year = min(max(moment.year, 1980), 2107)
    return year, moment.month, moment.day, moment.hour, moment.minute, moment.second


class _Drained(io.RawIOBase):
    """The archive's output, drained while it is written. Not seekable, so ``zipfile`` never rewrites a header."""

    def __init__(self) -> None:
        super().__init__()
        self._pieces: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        piece = bytes(data)  # type: ignore[call-overload]
        self._pieces.append(piece)
        return len(piece)

    def drain(self) -> bytes:
        """Returns the bytes written since the last call."""
        pieces, self._pieces = self._pieces, []
        return b"".join(pieces)


def _large_pieces(texts: Iterator[str], size: int = 65536) -> Iterator[str]:
    waiting: list[str] = []
    length = 0
    for text in texts:
        waiting.append(text)
        length += len(text)
        if length >= size:
            yield "".join(waiting)
            waiting, length = [], 0
    yield "".join(waiting)
