"""Reads a DOCX: headings by their styles, lists and tables whole."""

from __future__ import annotations

import io
import re
import zipfile
from pathlib import PurePath
from typing import TYPE_CHECKING

from app.errors import BrokenFile, TooLarge
from app.knowledge.readers.blocks import BlockBuilder, BlockKind, ReadDocument, ReadingLimits, table_text

if TYPE_CHECKING:
    from docx.text.paragraph import Paragraph

_HEADING = re.compile(r"Heading\s?([1-9])$", re.IGNORECASE)


def read(data: bytes, name: str, limits: ReadingLimits) -> ReadDocument:
    from docx import Document
    from docx.table import Table

    builder = BlockBuilder()
    items: list[str] = []
    try:
        # zipfile reads no more of a file than the archive's directory says, so the sum is a bound.
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            unpacked = sum(entry.file_size for entry in archive.infolist())
        if unpacked > limits.max_unpacked_bytes:
            raise TooLarge(
                f"{name} unpacks to {unpacked // 2**20} MiB, which is more than a document may have. Split it."
            )
        document = Document(io.BytesIO(data))
        title = document.core_properties.title or ""
        for content in document.iter_inner_content():
            if not isinstance(content, Table) and _is_list_item(content) and content.text.strip():
                items.append("- " + " ".join(content.text.split()))
                continue
            builder.add(BlockKind.LIST, "\n".join(items))
            items.clear()
            if isinstance(content, Table):
                builder.add(BlockKind.TABLE, table_text([[cell.text for cell in row.cells] for row in content.rows]))
                continue
            style = content.style.style_id if content.style is not None else ""
            if style == "Title":
                title = title or content.text
            elif level := _HEADING.match(style):
                builder.heading(int(level[1]), content.text)
            else:
                builder.add(BlockKind.PARAGRAPH, content.text)
    except (TooLarge, MemoryError):
        raise
    except Exception as error:  # a broken file makes zipfile, lxml and python-docx raise nearly anything
        raise BrokenFile(f"{name} is damaged: it cannot be read as a DOCX. Save it again.") from error
    builder.add(BlockKind.LIST, "\n".join(items))
    return builder.finish(title or PurePath(name).stem)


def _is_list_item(paragraph: Paragraph) -> bool:
    properties = paragraph._p.pPr
    if properties is not None and properties.numPr is not None:
        return paragraph.style is None or not _HEADING.match(paragraph.style.style_id)  # headings may be numbered
    return paragraph.style is not None and paragraph.style.style_id.startswith("List")
