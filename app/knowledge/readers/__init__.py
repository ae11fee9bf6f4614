"""Reads a document of any supported format into blocks of text. Each format has a module of its own, which imports its
package when it reads: the server never does, only the process that reads."""

from __future__ import annotations

from collections.abc import Callable

from app.errors import BrokenFile, TooLarge
from app.knowledge.readers import csv_questions, docx, html, markdown, pdf, plain
from app.knowledge.readers.blocks import Progress, ReadDocument, ReadingLimits
from app.knowledge.readers.kinds import DocumentKind, document_kind

_OF_TEXT: dict[DocumentKind, Callable[[bytes, str], ReadDocument]] = {
    DocumentKind.MARKDOWN: markdown.read,
    DocumentKind.HTML: html.read,
    DocumentKind.TEXT: plain.read,
    DocumentKind.CSV: csv_questions.read,
}


def read_document(
    data: bytes, name: str, *, limits: ReadingLimits | None = None, progress: Progress = lambda _: None
) -> ReadDocument:
    """Reads a file's bytes; ``name`` gives the format where the content leaves it open.

    Raises:
        BrokenFile: the file is damaged, encrypted, without text, or of a format that is not read.
        TooLarge: it exceeds a limit.
    """
    limits = limits or ReadingLimits()
    if len(data) > limits.max_bytes:
        raise TooLarge(f"{name} is larger than the {limits.max_bytes // 2**20} MiB that a document may have. Split it.")
    match document_kind(data, name):
        case DocumentKind.PDF:
            document = pdf.read(data, name, limits, progress)
        case DocumentKind.DOCX:
            document = docx.read(data, name, limits)
        case kind:
            document = _OF_TEXT[kind](data, name)
    if not document.blocks:
        raise BrokenFile(f"{name} has no text in it, so there is nothing to find. Check the file and add it again.")
    if sum(len(block.text) for block in document.blocks) > limits.max_characters:
        raise TooLarge(f"{name} has more than {limits.max_characters:,} characters of text. Split it.")
    return document
