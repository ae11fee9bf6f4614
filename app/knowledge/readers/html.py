"""Reads HTML: the page's main content, without navigation and footers, as trafilatura finds it."""

from __future__ import annotations

from pathlib import PurePath
from typing import Any

from app.errors import BrokenFile
from app.knowledge.readers.blocks import BlockBuilder, BlockKind, ReadDocument, table_text
from app.knowledge.readers.plain import add_paragraphs


def read(data: bytes, name: str) -> ReadDocument:
    import trafilatura

    try:
        found = trafilatura.bare_extraction(
            data, favor_recall=True, include_comments=False, include_tables=True, with_metadata=True
        )
        builder = BlockBuilder()
        title = ""
        if found is not None and not isinstance(found, dict):
            title = found.title or ""
            for element in found.body:
                _add(builder, element)
        if not builder.blocks:  # a page too short for its main content to be recognised
            add_paragraphs(builder, trafilatura.html2txt(data))
    except (ValueError, RecursionError, AssertionError) as error:
        raise BrokenFile(f"{name} is no HTML that can be read. Save the page again.") from error
    return builder.finish(title or PurePath(name).stem)


def _add(builder: BlockBuilder, element: Any) -> None:
    """Adds an element of trafilatura's tree: TEI's names, ``head``, ``p``, ``list``, ``table``, ``code``, ``quote``."""
    if element.tag == "head":
        level = element.get("rend") or "h2"
        builder.heading(int(level[1:]) if level[1:].isdigit() else 2, _text(element))
    elif element.tag == "list":
        builder.add(BlockKind.LIST, "\n".join(f"- {' '.join(_text(item).split())}" for item in element.iter("item")))
    elif element.tag == "table":
        rows = [[_text(cell) for cell in row.iter("cell")] for row in element.iter("row")]
        builder.add(BlockKind.TABLE, table_text(rows))
    elif element.tag == "code":
        builder.add(BlockKind.CODE, _text(element))
    elif any(child.tag in ("list", "table", "head", "p") for child in element):
        for child in element:
            _add(builder, child)
    else:
        builder.add(BlockKind.PARAGRAPH, " ".join(_text(element).split()))
    if element.tail and element.tail.strip():
        builder.add(BlockKind.PARAGRAPH, " ".join(element.tail.split()))


def _text(element: Any) -> str:
    for line_break in element.iter("lb"):
        line_break.tail = "\n" + (line_break.tail or "")
    return "".join(element.itertext())
