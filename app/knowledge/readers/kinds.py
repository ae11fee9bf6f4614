"""Recognises a document's format by its content, and by its name where any text would do."""

from __future__ import annotations

import codecs
import io
import re
import zipfile
from contextlib import suppress
from enum import StrEnum
from pathlib import PurePath

from app.errors import BrokenFile, InvalidInput


class DocumentKind(StrEnum):
    MARKDOWN = "markdown"
    HTML = "html"
    TEXT = "text"
    PDF = "pdf"
    DOCX = "docx"
    CSV = "csv"


SUFFIXES = {
    ".md": DocumentKind.MARKDOWN,
    ".markdown": DocumentKind.MARKDOWN,
    ".html": DocumentKind.HTML,
    ".htm": DocumentKind.HTML,
    ".xhtml": DocumentKind.HTML,
    ".txt": DocumentKind.TEXT,
    ".text": DocumentKind.TEXT,
    ".pdf": DocumentKind.PDF,
    ".docx": DocumentKind.DOCX,
    ".csv": DocumentKind.CSV,
}
READABLE = "Markdown, HTML, plain text, PDF, DOCX and CSV can be read."
_OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"  # DOC, XLS; and DOCX with a password
_HTML = re.compile(r"\s*(?:<!--.*?-->\s*)*<(?:!doctype\s+html|html[\s>])", re.IGNORECASE | re.DOTALL)
_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
WESTERN = "cp1252"
ENCODINGS = (
    *(WESTERN, "cp1250", "cp1251", "cp1253", "cp1254", "koi8_r"),
    *("shift_jis", "euc_jp", "gb18030", "big5", "euc_kr"),
)
"""Those that people still have files in, besides Unicode: among all that there are, short texts look like others."""
MAX_GUESSED_BYTES = 50_000  # read to guess an encoding
_NOT_ASCII = re.compile(rb"[\x80-\xff]")
_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1a\x1c-\x1f]")


def promised_kind(name: str) -> DocumentKind:
    """The format that a file's name promises.

    Raises:
        InvalidInput: it is none of those that can be read.
    """
    kind = SUFFIXES.get(PurePath(name).suffix.lower())
    if kind is None:
        raise InvalidInput(f"{name} cannot be read by its name. {READABLE}")
    return kind


def document_kind(data: bytes, name: str) -> DocumentKind:
    """The format of a file.

    Raises:
        BrokenFile: the format is not read, or is not the one that the name says.
    """
    named = SUFFIXES.get(PurePath(name).suffix.lower())
    if data.startswith(b"%PDF-") or (b"%PDF-" in data[:1024] and named in (None, DocumentKind.PDF)):
        return DocumentKind.PDF  # some programs write something else first
    if data.startswith(b"PK\x03\x04"):
        return _zip_kind(data, name)
    if data.startswith(_OLE):
        raise BrokenFile(
            f"{name} is an old Office file, or has a password. Save it as DOCX without a password and add it again."
        )
    if named in (DocumentKind.PDF, DocumentKind.DOCX):
        raise BrokenFile(f"{name} is not a {named.upper()} file, though its name says so. Export it again.")
    if named in (DocumentKind.MARKDOWN, DocumentKind.CSV):
        return named
    return DocumentKind.HTML if _HTML.match(decode(data, name)[:4096]) else named or DocumentKind.TEXT


def _zip_kind(data: bytes, name: str) -> DocumentKind:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            names = set(archive.namelist())
    except (zipfile.BadZipFile, ValueError, OverflowError, NotImplementedError, OSError) as error:
        raise BrokenFile(f"{name} is damaged: it is packed, but cannot be unpacked. Add it again.") from error
    if "word/document.xml" in names:
        return DocumentKind.DOCX
    raise BrokenFile(f"{name} is a packed file that is not a DOCX. {READABLE}")


def decode(data: bytes, name: str) -> str:
    """The text of a file in UTF-8, UTF-16 with a byte order mark, or what its bytes tell of its encoding.

    Of UTF-8 with a few bytes that are none, these become U+FFFD: in another encoding, all its other letters would be
    wrong.

    Raises:
        BrokenFile: it is no text.
    """
    text = _decoded(data)
    if text is None or _CONTROL.search(text):
        raise BrokenFile(f"{name} is no text and of no format that is known. {READABLE}")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _decoded(data: bytes) -> str | None:
    """The text; None if it is none."""
    with suppress(UnicodeDecodeError):
        return data.decode("utf-16" if data.startswith(_UTF_16) else "utf-8-sig")
    if data.startswith(_UTF_16) or b"\0" in data:
        return None
    text = data.decode("utf-8-sig", errors="replace")
    wrong = text.count("\ufffd")
    others = len(text) - len(text.encode("ascii", errors="ignore"))
    if others >= 2 * wrong:  # at least as many letters are UTF-8 as are not
        return text
    return data.decode(_guessed_encoding(data), errors="replace")


def _guessed_encoding(data: bytes) -> str:
    """Guesses by the lines from the first one that is not ASCII on: none of them is cut in the middle of a letter."""
    from charset_normalizer import from_bytes

    other = _NOT_ASCII.search(data)
    start = data.rfind(b"\n", 0, other.start() if other else 0) + 1
    sample = data[start : start + MAX_GUESSED_BYTES]
    if start + len(sample) < len(data) and (end := sample.rfind(b"\n")) > 0:
        sample = sample[:end]
    found = from_bytes(sample, cp_isolation=list(ENCODINGS))
    best = found.best()
    if best is None:
        return WESTERN
    alike = {one.encoding for one in found if (one.chaos, one.coherence) == (best.chaos, best.coherence)}
    return WESTERN if WESTERN in alike else best.encoding
