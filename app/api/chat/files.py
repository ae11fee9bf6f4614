"""Chat API: reads a file for a message."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import APIRouter, Request

from app.api.deps import ServicesDep, UserId
from app.api.uploads import uploaded_file
from app.domain.attached_files import file_block
from app.domain.attachments import attachment_name
from app.domain.text import clean_text
from app.errors import TooLarge
from app.knowledge.chat_files import MAX_CHAT_FILE_BYTES
from app.turns.engine_requests import count_tokens

router = APIRouter(prefix="/api/files", tags=["files"])

_FORM = {
    "schema": {"type": "object", "required": ["file"], "properties": {"file": {"type": "string", "format": "binary"}}}
}


@dataclass(frozen=True, slots=True)
class FileInMessage:
    """A file that was read, to be sent as a part of a message's text. Nothing of it is stored before that."""

    name: str
    size: int  #: in bytes
    tokens: int  #: of its text
    block: str  #: its text between marks: append it to the message


@router.post("", openapi_extra={"requestBody": {"content": {"multipart/form-data": _FORM}}})
async def read_file(request: Request, user_id: UserId, services: ServicesDep) -> FileInMessage:  # noqa: ARG001
    """Reads the file `file` into text for a message: text, Markdown, code, CSV, HTML, PDF or DOCX. Stores nothing."""
    files = services.knowledge.chat_files
    too_large = TooLarge(f"The file is larger than {MAX_CHAT_FILE_BYTES // 2**20} MiB. Attach a part of it.")
    async with uploaded_file(request, MAX_CHAT_FILE_BYTES, too_large, files.at_once, max_fields=0) as file:
        name, content = attachment_name(file.name)[:200], file.content
    async with files.at_once:  # once more: what is refused from here on is refused with its own sentence
        text = clean_text(await files.read(content, name))
    limit = services.settings.max_message_chars
    if len(text) > limit:
        raise TooLarge(
            f"{name} has {len(text):,} characters of text; a message may have {limit:,}. Attach a part of it."
        )
    tokens, length = await count_tokens(services.engine, text), services.engine.info.max_model_len
    if tokens >= length:
        raise TooLarge(
            f"{name} has {tokens:,} tokens; the model reads at most {length:,}, its reply included. Attach a part "
            "of it, or load a model that reads more."
        )
    return FileInMessage(name, len(content), tokens, file_block(name, len(content), tokens, text))
