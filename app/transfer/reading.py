"""Reads the conversations in a file, in any supported format. A file is accepted as a whole or refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import IO, Any, Protocol

from pydantic import ValidationError

from app.domain.broken_conversation import BrokenConversation
from app.domain.conversation_document import FORMAT, VERSION, ConversationDocument, DraftDocument, MessageDocument
from app.domain.document_tree import latest_tip, positions
from app.domain.storage import MAX_CONVERSATION_BYTES, MESSAGE_BYTES, MIB, mebibytes
from app.domain.text import one_line
from app.errors import BrokenFile
from app.transfer import chatgpt, open_webui, sharegpt
from app.transfer.files import json_files
from app.transfer.foreign import ForeignConversation, converted
from app.transfer.json_source import JsonSource

#: Called with the progress, from 0 to 1.
Progress = Callable[[float], None]

#: Far above what a model writes at once. A longer message would block all users while it is written and indexed.
MIN_MESSAGE_LIMIT_BYTES = 2 * MIB
_MAX_BYTES_PER_CHAR = 4  # in UTF-8

KNOWN = "Deskmate's own JSON, ChatGPT's export, Open WebUI's export, and ShareGPT"


class _Program(Protocol):
    """A reader module for one program's export."""

    def can_read(self, conversation: Mapping[str, Any], /) -> bool: ...

    def read(self, conversation: Mapping[str, Any], /) -> ForeignConversation: ...


_PROGRAMS: tuple[_Program, ...] = (chatgpt, open_webui, sharegpt)

_Reader = Callable[[Any], ConversationDocument]


def max_message_bytes(max_message_chars: int) -> int:
    """Size limit of one imported message, in bytes. At least what the chat accepts, so that exports can be imported.

    Args:
        max_message_chars: longest message that the chat accepts, in characters.
    """
    return max(MIN_MESSAGE_LIMIT_BYTES, _MAX_BYTES_PER_CHAR * max_message_chars)


def read_conversations(
    file: IO[bytes],
    name: str,
    *,
    max_bytes: int,
    max_message_bytes: int = MIN_MESSAGE_LIMIT_BYTES,
    now: datetime,
    progress: Progress | None = None,
) -> list[ConversationDocument]:
    """All conversations in a file; see :func:`iter_conversations`."""
    return list(
        iter_conversations(
            file, name, max_bytes=max_bytes, max_message_bytes=max_message_bytes, now=now, progress=progress
        )
    )


def iter_conversations(
    file: IO[bytes],
    name: str,
    *,
    max_bytes: int,
    max_message_bytes: int,
    now: datetime,
    progress: Progress | None = None,
) -> Iterator[ConversationDocument]:
    """Yields every conversation in a file.

    Args:
        file: JSON, JSON Lines, or a ZIP archive with such files.
        name: the file's name, for error messages.
        max_bytes: size limit of the file, and of all that is unpacked from it.
        max_message_bytes: size limit of one message's text; see :func:`max_message_bytes`.
        now: the time of conversations without a timestamp.

    Raises:
        BrokenFile: the file is not supported, or part of it is not valid; the text says where. Conversations yielded
            before are valid.
        TooLarge: it is larger than ``max_bytes``.
    """
    can_read = False
    for called, data in json_files(file, name, max_bytes):
        source = JsonSource(data, called)
        read = _reader(source, called, now)
        if read is None:
            if called == name:
                raise BrokenFile(f"{name} is JSON, but not in a supported format: {KNOWN}.")
            continue
        can_read = True
        for index, item in enumerate(source):
            try:
                conversation = read(item.value)
                _require_size(conversation, max_message_bytes)
            except BrokenConversation as error:
                raise BrokenFile(
                    f"{called} is broken in conversation {index + 1}{_title(item.value)}, which begins in line "
                    f"{item.line}, at {error.field}: {error.reason}. Nothing was imported."
                ) from error
            yield conversation
            if progress is not None:
                progress((index + 1) / len(source))
    if not can_read:
        raise BrokenFile(f"There are no conversations in {name} in a supported format: {KNOWN}.")


def _require_size(conversation: ConversationDocument, max_message_bytes: int) -> None:
    total = MESSAGE_BYTES * len(conversation.messages)
    total += sum(
        len(message.turn.params.system_prompt.encode()) for message in conversation.messages if message.turn is not None
    )
    for place, parts in (("messages", conversation.messages), ("drafts", conversation.drafts)):
        for field, text in _texts(place, parts):
            size = len(text.encode())
            if size > max_message_bytes:
                raise BrokenConversation(
                    field,
                    f"the text takes {mebibytes(size)}, and {mebibytes(max_message_bytes)} is the most for one "
                    "message: shorten it, or ask an admin to raise APP_MAX_MESSAGE_CHARS",
                )
            total += size
    if total > MAX_CONVERSATION_BYTES:
        raise BrokenConversation(
            "messages",
            f"they take {mebibytes(total)}, and {mebibytes(MAX_CONVERSATION_BYTES)} is the most for one conversation",
        )


def _texts(place: str, parts: Sequence[MessageDocument | DraftDocument]) -> Iterator[tuple[str, str]]:
    for index, part in enumerate(parts):
        for field, text in part.texts():
            yield f"{place}[{index}].{field}", text


def _reader(source: JsonSource, name: str, now: datetime) -> _Reader | None:
    """The function that reads this file's conversations; None if the format is not supported."""
    if source.around is not None:
        if source.around.get("format") != FORMAT:
            return None
        version = source.around.get("version")
        if version != VERSION:
            raise BrokenFile(
                f"{name} has version {version!r} of this format, and this Deskmate supports version {VERSION}. Import "
                "it with the Deskmate that wrote it, or a newer one."
            )
        return _own
    first = next(iter(source), None)
    if first is None:
        return _own  # an empty list is a valid export without conversations
    if not isinstance(first.value, dict):
        return None
    program = next((program for program in _PROGRAMS if program.can_read(first.value)), None)
    return _foreign(program, now) if program is not None else None


def _own(value: Any) -> ConversationDocument:
    try:
        conversation = ConversationDocument.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise BrokenConversation(_place(first["loc"]), _reason(first["msg"])) from error
    positions(conversation)
    if conversation.tip is None:
        return conversation.model_copy(update={"tip": latest_tip(conversation.messages)})
    return conversation


def _foreign(program: _Program, now: datetime) -> _Reader:
    def read(value: Any) -> ConversationDocument:
        if not isinstance(value, dict) or not program.can_read(value):
            raise BrokenConversation("the conversation itself", "it has another format than the first one in the file")
        return converted(program.read(value), now)

    return read


def _place(location: Sequence[int | str]) -> str:
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location).lstrip(".")
    return place or "the conversation itself"


def _reason(message: str) -> str:
    message = message.removeprefix("Value error, ").rstrip(".")
    return message[:1].lower() + message[1:]


def _title(value: Any) -> str:
    title = value.get("title") if isinstance(value, dict) else None
    return f" ({one_line(title)[:60]!r})" if isinstance(title, str) and title.strip() else ""
