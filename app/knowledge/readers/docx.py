"""Reads a DOCX: headings by the names or outline levels of their styles, lists and tables whole.

Text also stands in tracked insertions, content controls, text boxes and nested tables, which python-docx leaves out, so
the document's elements are read themselves. Deleted text, and text where it was before it was moved, is left out.
"""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Iterator
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from app.errors import BrokenFile, TooLarge
from app.knowledge.readers.blocks import (
    BlockBuilder,
    BlockKind,
    ReadDocument,
    ReadingLimits,
    require_shallow,
    table_text,
)

if TYPE_CHECKING:
    from docx.document import Document
    from docx.styles.style import BaseStyle

_HEADING = re.compile(r"Heading\s?([1-9])$", re.IGNORECASE)
_W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_FALLBACK = "{http://schemas.openxmlformats.org/markup-compatibility/2006}Fallback"
_LEFT_OUT = {f"{_W}del", f"{_W}moveFrom", f"{_W}txbxContent", _FALLBACK}
"""Of a paragraph. A text box is read after it, and has its text a second time for old readers."""
_SPACES = {f"{_W}tab": "\t", f"{_W}br": "\n", f"{_W}cr": "\n", f"{_W}noBreakHyphen": "-"}
_BODY_LEVEL = 9  # an outline level that is none
_MAX_COLUMNS = 63  # that Word can make
_MAX_DIGITS = 6


def read(data: bytes, name: str, limits: ReadingLimits) -> ReadDocument:
    from docx import Document

    try:
        # zipfile reads no more of a file than the archive's directory says, so the sum is a bound.
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            unpacked = sum(entry.file_size for entry in archive.infolist())
        if unpacked > limits.max_unpacked_bytes:
            raise TooLarge(
                f"{name} unpacks to {unpacked // 2**20} MiB, which is more than a document may have. Split it."
            )
        return _Reading(Document(io.BytesIO(data))).run(PurePath(name).stem)
    except (TooLarge, MemoryError):
        raise
    except Exception as error:  # a broken file makes zipfile, lxml and python-docx raise nearly anything
        require_shallow(name, str(error))
        raise BrokenFile(f"{name} is damaged: it cannot be read as a DOCX. Save it again.") from error


class _Reading:
    """Reads one document."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._builder = BlockBuilder()
        self._items: list[str] = []
        self._title = document.core_properties.title or ""
        self._styles: dict[str, BaseStyle] = {style.style_id: style for style in document.styles}

    def run(self, name: str) -> ReadDocument:
        """Returns what was read; ``name`` is the title of a document without one."""
        self._add_blocks(self._document.element.body)
        self._end_list()
        return self._builder.finish(self._title or name)

    def _add_blocks(self, parent: Any) -> None:
        for element in _blocks(parent):
            if element.tag == f"{_W}tbl":
                self._end_list()
                self._builder.add(BlockKind.TABLE, table_text(_rows(element)))
            else:
                self._add_paragraph(element)
                for box in _boxes(element):
                    self._add_blocks(box)

    def _add_paragraph(self, element: Any) -> None:
        text = _text(element)
        chain = list(self._style_chain(element))
        level = _heading_level(element, chain)
        if level is None and text.strip() and _is_list_item(element, chain):
            self._items.append("- " + " ".join(text.split()))
            return
        self._end_list()
        if chain and chain[0].name == "Title":
            self._title = self._title or text
        elif level is not None:
            self._builder.heading(level, text)
        else:
            self._builder.add(BlockKind.PARAGRAPH, text)

    def _end_list(self) -> None:
        self._builder.add(BlockKind.LIST, "\n".join(self._items))
        self._items.clear()

    def _style_chain(self, element: Any) -> Iterator[BaseStyle]:
        """Yields a paragraph's style, then those that it is based on."""
        seen: set[str] = set()
        style = self._styles.get(_value(element, "pPr", "pStyle") or "")
        while style is not None and style.style_id not in seen:
            seen.add(style.style_id)
            yield style
            style = self._styles.get(_value(style.element, "basedOn") or "")


def _blocks(parent: Any) -> Iterator[Any]:
    """Yields paragraphs and tables, also those within content controls and other elements that only mark them."""
    for element in parent:
        if element.tag in (f"{_W}p", f"{_W}tbl"):
            yield element
        elif element.tag in (f"{_W}sdt", f"{_W}sdtContent", f"{_W}customXml", f"{_W}ins", f"{_W}moveTo"):
            yield from _blocks(element)


def _text(element: Any) -> str:
    """The text of a paragraph, of all its runs wherever they are."""
    if element.tag in _LEFT_OUT:
        return ""
    if element.tag == f"{_W}t":
        return element.text or ""
    if element.tag in _SPACES:
        return _SPACES[element.tag]
    return "".join(_text(child) for child in element if child.tag != f"{_W}pPr")  # where a tab is a tab stop


def _boxes(element: Any) -> Iterator[Any]:
    """Yields the text boxes of a paragraph, not those within them."""
    for child in element:
        if child.tag == f"{_W}txbxContent":
            yield child
        elif child.tag not in _LEFT_OUT:
            yield from _boxes(child)


def _rows(table: Any) -> list[list[str]]:
    """The cells of a table. One that is merged stands in each of its columns and rows."""
    rows: list[list[str]] = []
    for row in _parts(table, "tr"):
        cells: list[str] = []
        for cell in _parts(row, "tc"):
            properties = cell.find(f"{_W}tcPr")
            merge = None if properties is None else properties.find(f"{_W}vMerge")
            if merge is not None and merge.get(f"{_W}val") != "restart" and rows and len(cells) < len(rows[-1]):
                text = rows[-1][len(cells)]
            else:
                text = "\n".join(filter(None, _cell_lines(cell)))
            cells += [text] * min(_number(_value(cell, "tcPr", "gridSpan"), 1), _MAX_COLUMNS)
        rows.append(cells)
    return rows


def _cell_lines(cell: Any) -> Iterator[str]:
    for element in _blocks(cell):
        if element.tag == f"{_W}tbl":
            # A cell that is merged stands here once: copies of copies would have no end.
            yield from (", ".join(filter(None, dict.fromkeys(row))) for row in _rows(element))
        else:
            yield _text(element)
            for box in _boxes(element):
                yield from _cell_lines(box)


def _parts(parent: Any, tag: str) -> Iterator[Any]:
    """Yields a table's rows or a row's cells, also those within content controls."""
    for element in parent:
        if element.tag == f"{_W}{tag}":
            yield element
        elif element.tag in (f"{_W}sdt", f"{_W}sdtContent", f"{_W}customXml"):
            yield from _parts(element, tag)


def _heading_level(element: Any, chain: list[BaseStyle]) -> int | None:
    """The level of a heading, from 1. Names of styles are English in every language of Word, their ids are not."""
    if (own := _value(element, "pPr", "outlineLvl")) is not None:
        return _level(own)
    for style in chain:
        if named := _HEADING.match(style.name or ""):
            return int(named[1])
        if (outline := _value(style.element, "pPr", "outlineLvl")) is not None:
            return _level(outline)
    return None


def _level(outline: str) -> int | None:
    level = _number(outline, _BODY_LEVEL)
    return level + 1 if level < _BODY_LEVEL else None


def _number(text: str | None, otherwise: int) -> int:
    return int(text) if text is not None and text.isdecimal() and len(text) < _MAX_DIGITS else otherwise


def _is_list_item(element: Any, chain: list[BaseStyle]) -> bool:
    numbered = [_value(element, "pPr", "numPr", "numId")]
    numbered += [_value(style.element, "pPr", "numPr", "numId") for style in chain]
    if (nearest := next((number for number in numbered if number is not None), None)) is not None:
        return nearest != "0"  # 0 takes a style's numbers away
    return any((style.name or "").startswith("List") for style in chain)


def _value(element: Any, *path: str) -> str | None:
    """The attribute ``val`` of an element below another; None without the element."""
    found = element.find("/".join(f"{_W}{tag}" for tag in path))
    return None if found is None else found.get(f"{_W}val")
