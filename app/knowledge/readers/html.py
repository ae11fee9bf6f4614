"""Reads HTML: the page's main content, without navigation and footers, as trafilatura finds it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import PurePath
from typing import Any

from app.errors import BrokenFile
from app.knowledge.readers.blocks import BlockBuilder, BlockKind, ReadDocument, require_shallow, table_text
from app.knowledge.readers.plain import add_paragraphs


def read(data: bytes, name: str) -> ReadDocument:
    import trafilatura

    try:
        _require_shallow(data, name)
        found = trafilatura.bare_extraction(
            data, favor_recall=True, include_comments=False, include_tables=True, with_metadata=True
        )
        builder = BlockBuilder()
        title = ""
        if found is not None and not isinstance(found, dict):
            title = found.title or ""
            _add_mixed(builder, found.body)
        if not builder.blocks:  # a page too short for its main content to be recognised
            add_paragraphs(builder, trafilatura.html2txt(data))
    except (ValueError, RecursionError, AssertionError) as error:
        raise BrokenFile(f"{name} is no HTML that can be read. Save the page again.") from error
    return builder.finish(title or PurePath(name).stem)


def _require_shallow(data: bytes, name: str) -> None:
    """Raises TooLarge if the parser would leave out text because of its nesting; trafilatura does not say so."""
    from lxml import etree, html

    parser = html.HTMLParser()
    with suppress(etree.ParserError):  # such as an empty page
        html.document_fromstring(data, parser=parser)
    for entry in parser.error_log:
        require_shallow(name, entry.message)


_BLOCKS = {"head", "p", "list", "table", "code", "quote", "div"}


def _add(builder: BlockBuilder, element: Any) -> None:
    """Adds an element of trafilatura's tree: TEI's names, ``head``, ``p``, ``list``, ``table``, ``code``, ``quote``."""
    if element.tag == "head":
        level = element.get("rend") or "h2"
        builder.heading(int(level[1:]) if level[1:].isdigit() else 2, _text(element))
    elif element.tag == "list":
        builder.add(BlockKind.LIST, "\n".join(_items(element)))
    elif element.tag == "table":
        rows = [[_text(cell) for cell in row.iter("cell")] for row in element.iter("row")]
        builder.add(BlockKind.TABLE, table_text(rows))
    elif element.tag == "code":
        builder.add(BlockKind.CODE, _text(element))
    else:
        _add_mixed(builder, element)
    _add_line(builder, element.tail or "")


def _add_mixed(builder: BlockBuilder, element: Any) -> None:
    """Adds an element of text with blocks in between."""
    line = element.text or ""
    for child in element:
        if _is_block(child):
            _add_line(builder, line)
            line = ""
            _add(builder, child)  # with the text after it
        else:
            line += _text(child) + (child.tail or "")
    _add_line(builder, line)


def _is_block(element: Any) -> bool:
    """Code is a block only where it has lines."""
    return element.tag in _BLOCKS and (element.tag != "code" or "\n" in _text(element).strip())


def _add_line(builder: BlockBuilder, text: str) -> None:
    builder.add(BlockKind.PARAGRAPH, " ".join(text.split()))


def _items(element: Any, indent: str = "") -> Iterator[str]:
    """Yields the items of a list, those of a list in an item indented below it."""
    for item in element.iterchildren("item", "list"):
        if item.tag == "list":
            yield from _items(item, indent + "  ")
            continue
        if own := " ".join(_text(item, without="list").split()):
            yield f"{indent}- {own}"
        for inner in item.iter("list"):
            if next(inner.iterancestors("list")) is element:
                yield from _items(inner, indent + "  ")


def _text(element: Any, without: str = "") -> str:
    """The text of an element, without that of the elements of one name."""
    if element.tag == "lb":
        return "\n"
    parts = [element.text or ""]
    for child in element:
        if child.tag != without:
            parts.append(_text(child, without))
        parts.append(child.tail or "")
    return "".join(parts)
