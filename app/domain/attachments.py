"""Files that contacts send: what they are, by their content. A name or a client's word for it proves nothing."""

from __future__ import annotations

from app.domain.text import shown_name
from app.errors import InvalidInput

MAX_ATTACHMENT_BYTES = 10 * 2**20
MAX_UNSENT = 10
"""Files of a contact that no message has taken yet; more are refused. After a day they are deleted."""
MAX_CONTACT_BYTES = 100 * 2**20
"""Size of all files of a contact."""

TEXT = "text/plain"
_SIGNATURES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"%PDF-", "application/pdf"),
)
_CONTROLS = frozenset(range(0x20)) - {0x09, 0x0A, 0x0C, 0x0D}
WHAT_MAY_BE_SENT = "Send a picture (PNG, JPEG, GIF, WebP), a PDF or a text."


def attachment_type(content: bytes) -> str:
    """Returns the media type of a file by its content.

    Raises:
        InvalidInput: it is empty, or none of the kinds that may be sent.
    """
    if not content:
        raise InvalidInput("This file is empty.")
    for signature, type in _SIGNATURES:
        if content.startswith(signature):
            return type
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "image/webp"
    if not _CONTROLS & set(content) and _is_utf8(content):
        return TEXT
    raise InvalidInput(f"This kind of file cannot be sent. {WHAT_MAY_BE_SENT}")


def attachment_name(path: str) -> str:
    """Returns the last part of a client's name of a file, as it can be shown."""
    return shown_name(path.replace("\\", "/").rpartition("/")[2]) or "file"


def _is_utf8(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True
