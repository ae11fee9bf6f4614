"""Reads Markdown (CommonMark and tables). Blocks keep their marks: a list or a table is readable with them."""

from __future__ import annotations

import re
from pathlib import PurePath

from app.domain.markdown_marks import strip_marks
from app.knowledge.readers.blocks import BlockBuilder, BlockKind, ReadDocument
from app.knowledge.readers.kinds import decode

_FRONT_MATTER = re.compile(r"---[ \t]*\n(.*?\n)(?:---|\.\.\.)[ \t]*(?:\n|\Z)", re.DOTALL)
_FRONT_TITLE = re.compile(r"^title:[ \t]*(.+)$", re.MULTILINE)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_TAG = re.compile(r"</?[a-zA-Z][^<>]*>")
_KINDS = {
    "paragraph_open": BlockKind.PARAGRAPH,
    "blockquote_open": BlockKind.PARAGRAPH,
    "bullet_list_open": BlockKind.LIST,
    "ordered_list_open": BlockKind.LIST,
    "table_open": BlockKind.TABLE,
    "code_block": BlockKind.CODE,
}


def read(data: bytes, name: str) -> ReadDocument:
    from markdown_it import MarkdownIt

    text, title = _without_front_matter(decode(data, name))
    lines = text.split("\n")
    builder = BlockBuilder()
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    for at, token in enumerate(tokens):
        if token.level or token.map is None:
            continue
        source = "\n".join(lines[slice(*token.map)])
        if token.type == "heading_open":
            heading = strip_marks(tokens[at + 1].content)
            builder.heading(int(token.tag[1:]), heading)
            title = title or heading
        elif token.type == "fence":
            builder.add(BlockKind.CODE, token.content)
        elif token.type == "html_block":
            builder.add(BlockKind.PARAGRAPH, _TAG.sub("", _COMMENT.sub("", source)))
        elif token.type in _KINDS:
            builder.add(_KINDS[token.type], source)
    return builder.finish(title or PurePath(name).stem)


def _without_front_matter(text: str) -> tuple[str, str]:
    """The text below a block of YAML, and the title that the block names."""
    if not (front := _FRONT_MATTER.match(text)):
        return text, ""
    title = _FRONT_TITLE.search(front[1])
    return text[front.end() :], title[1].strip().strip("\"'") if title else ""
