"""Reads the text of a PDF, page by page."""

from __future__ import annotations

import io
from pathlib import PurePath

from app.errors import BrokenFile, TooLarge
from app.knowledge.readers.blocks import BlockBuilder, Progress, ReadDocument, ReadingLimits
from app.knowledge.readers.plain import add_paragraphs


def read(data: bytes, name: str, limits: ReadingLimits, progress: Progress) -> ReadDocument:
    from pypdf import PdfReader
    from pypdf.errors import DependencyError, LimitReachedError

    builder, title, pages = BlockBuilder(), "", 0
    try:
        reader = PdfReader(io.BytesIO(data))
        if reader.is_encrypted and not reader.decrypt(""):
            raise BrokenFile(f"{name} is encrypted. Save it without a password and add it again.")
        pages = len(reader.pages)
        if pages > limits.max_pages:
            raise TooLarge(f"{name} has {pages} pages; a document may have {limits.max_pages}. Split it.")
        metadata = reader.metadata
        title = str(metadata.title or "") if metadata else ""
        for number, page in enumerate(reader.pages, 1):
            add_paragraphs(builder, page.extract_text(), number)
            progress(number / pages)
    except (BrokenFile, TooLarge, MemoryError):
        raise
    except DependencyError as error:  # AES needs a package that is not here
        raise BrokenFile(f"{name} is encrypted. Save it without a password and add it again.") from error
    except LimitReachedError as error:
        raise TooLarge(f"{name} unpacks to more than there is room for. Export it again, or split it.") from error
    except Exception as error:  # a broken file makes pypdf raise nearly anything
        raise BrokenFile(f"{name} is damaged: its pages cannot be read. Export it again.") from error
    if pages and not builder.blocks:
        raise BrokenFile(
            f"{name} has pages but no text: it is probably a scan. Recognise its text (OCR) and add it again."
        )
    return builder.finish(title or PurePath(name).stem)
