"""Recognises a document's format by its content, and by its name where any text would do."""

from __future__ import annotations

import codecs
import io
import re
import zipfile
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
    if b"%PDF-" in data[:1024]:
        return DocumentKind.PDF
    if data.startswith(b"PK\x03\x04"):
        return _zip_kind(data, name)
    if data.startswith(_OLE):
        raise BrokenFile(
            f"{name} is an old Office file, or has a password. Save it as DOCX without a password and add it again."
        )
    if named in (DocumentKind.PDF, DocumentKind.DOCX):
        raise BrokenFile(f"{name} is not a {named.upper()} file, though its name says so. Export it again.")
    start = decode(data, name)[:4096]
    if named in (None, DocumentKind.TEXT) and _HTML.match(start):
        return DocumentKind.HTML
    return named or DocumentKind.TEXT


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
    """The text of a file in UTF-8, UTF-16 with a byte order mark, or Windows-1252.

    Raises:
        BrokenFile: it is no text.
    """
    encodings = ["utf-8-sig", "cp1252"]
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        encodings = ["utf-16"]
    for encoding in encodings:
        try:
            text = data.decode(encoding)
        except UnicodeDecodeError:
            continue
        if _CONTROL.search(text):
            break
        return text.replace("\r\n", "\n").replace("\r", "\n")
    raise BrokenFile(f"{name} is no text and of no format that is known. {READABLE}")
