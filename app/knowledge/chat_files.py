"""Reads the files of a chat: verbatim where they are text, else as the knowledge base reads documents."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path

from app.domain.attachments import attachment_type
from app.errors import BrokenFile, InvalidInput, TooLarge
from app.knowledge.readers.kinds import DocumentKind, decode, document_kind
from app.knowledge.reading_process import read_isolated

MAX_CHAT_FILE_BYTES = 20 * 2**20
MAX_SECONDS = 120  # on a busy machine, reading gives way to replies
_AT_ONCE = 2
_PACKED = (b"%PDF-", b"PK\x03\x04")


class ChatFiles:
    """Reads files into text, few at a time, each in a process with limits of memory and time unless it is text."""

    def __init__(self, tokenizer: Path) -> None:
        self._tokenizer = tokenizer
        self.at_once = asyncio.Semaphore(_AT_ONCE)  #: files that are in memory

    async def read(self, data: bytes, name: str) -> str:
        """Returns the text of a file.

        Raises:
            InvalidInput: it is a picture.
            BrokenFile: it is empty, damaged, encrypted, or not what its name says.
            TooLarge: reading it takes too much memory or time.
        """
        if not data:
            raise BrokenFile(f"{name} is empty. Choose another file.")
        if _is_picture(data):
            raise InvalidInput(f"{name} is a picture, and the model reads text only. Describe it, or attach its text.")
        if not any(mark in data[:1024] for mark in _PACKED):
            text = await asyncio.to_thread(_text_of, data, name)
            if text is not None:
                return text
        try:
            async with asyncio.timeout(MAX_SECONDS):
                with closing(await read_isolated(data, name, self._tokenizer)) as document:
                    return document.text
        except TimeoutError as error:
            raise TooLarge(f"{name} takes too long to read. Attach a part of it.") from error


def _is_picture(data: bytes) -> bool:
    if data.startswith((b"BM", b"II*\x00", b"MM\x00*")) and b"\x00" in data[:64]:
        return True
    try:
        return attachment_type(data[:64]).startswith("image/")
    except InvalidInput:
        return False


def _text_of(data: bytes, name: str) -> str | None:
    """Returns the file as it is, if it is text; None for a web page, of which only the text counts."""
    if document_kind(data, name) is DocumentKind.HTML:
        return None
    text = decode(data, name).strip("\n")
    if not text.strip():
        raise BrokenFile(f"{name} has no text in it. Choose another file.")
    return text
