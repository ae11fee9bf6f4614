"""Reads plain text: paragraphs are separated by empty lines."""

from __future__ import annotations

import re
from pathlib import PurePath

from app.knowledge.readers.blocks import BlockBuilder, BlockKind, ReadDocument
from app.knowledge.readers.kinds import decode

_EMPTY_LINES = re.compile(r"\n[ \t]*\n\s*")


def read(data: bytes, name: str) -> ReadDocument:
    builder = BlockBuilder()
    add_paragraphs(builder, decode(data, name))
    return builder.finish(PurePath(name).stem)


def add_paragraphs(builder: BlockBuilder, text: str, page: int | None = None) -> None:
    for paragraph in _EMPTY_LINES.split(text):
        builder.add(BlockKind.PARAGRAPH, paragraph, page)
