"""Cuts a document into chunks for the search: by structure first, by size only where a block is too large."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from app.knowledge.readers.blocks import Block, BlockKind

#: Returns the number of tokens of a text.
CountTokens = Callable[[str], int]

_MAX_COUNTED_CHARACTERS = 20_000
_SENTENCE_END = re.compile(r"(?:[.!?…][\"'”’)\]]*\s+|[。！？]\s*|\n+)(?=\S)")
_ROW_START = re.compile(r"\n(?=\S)")  # indented lines belong to the item above
_LINE_START = re.compile(r"\n(?=.)")
_WORD_START = re.compile(r"\s(?=\S)")


class TooManyChunks(Exception):
    """The document has more chunks than it may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkLimits:
    """Sizes in tokens."""

    min_tokens: int = 200  #: below it, a chunk takes in the next block of its section
    max_tokens: int = 350
    max_whole_tokens: int = 700  #: tables and lists up to this size stay whole
    max_overlap_tokens: int = 60  #: of the sentence that two parts of a paragraph share
    max_chunks: int = 100_000  #: of a document


@dataclass(frozen=True, slots=True)
class Chunk:
    """``text[start:end]`` of the document's text."""

    heading: str  #: the path of headings, joined by " > "; a part of a split table has the table's head as its last
    start: int
    end: int
    tokens: int


@dataclass(frozen=True, slots=True)
class _Span:
    start: int
    end: int
    tokens: int


def compose(blocks: Sequence[Block]) -> tuple[str, list[int]]:
    """The document's text, in which headings stand above their blocks, and where in it each block starts."""
    parts: list[str] = []
    starts: list[int] = []
    length = 0
    above: tuple[str, ...] = ()
    for block in blocks:
        shared = 0
        while shared < min(len(above), len(block.headings)) and above[shared] == block.headings[shared]:
            shared += 1
        for heading in block.headings[shared:]:
            parts.append(heading)
            length += len(heading) + 2
        above = block.headings
        starts.append(length)
        parts.append(block.text)
        length += len(block.text) + 2
    return "\n\n".join(parts), starts


def cut(blocks: Sequence[Block], count: CountTokens, limits: ChunkLimits | None = None) -> tuple[str, list[Chunk]]:
    """The document's text and its chunks, in the order of the text.

    A chunk never spans two sections. Blocks of a section are merged until ``min_tokens``; a block larger than
    ``max_tokens`` is split at sentences (paragraphs, one sentence overlaps), lines (code), rows or items (tables and
    lists, only above ``max_whole_tokens``), and at words or characters where there is nothing better.

    Raises:
        TooManyChunks: see :class:`ChunkLimits`.
    """
    limits = limits or ChunkLimits()
    count = _bounded(count)
    text, starts = compose(blocks)
    chunks: list[Chunk] = []
    pending: Chunk | None = None  # the last chunk, while it may grow
    for block, start in zip(blocks, starts, strict=True):
        if len(chunks) > limits.max_chunks:
            raise TooManyChunks
        heading = " > ".join(block.headings)
        tokens = count(block.text)
        if pending and pending.heading == heading and pending.tokens < limits.min_tokens:
            together = count(text[pending.start : start + len(block.text)])
            if together <= limits.max_tokens:
                pending = Chunk(heading, pending.start, start + len(block.text), together)
                continue
        if pending:
            chunks.append(pending)
            pending = None
        whole = limits.max_whole_tokens if block.kind in (BlockKind.TABLE, BlockKind.LIST) else limits.max_tokens
        if tokens <= whole:
            pending = Chunk(heading, start, start + len(block.text), tokens)
            continue
        head = _table_head(block)
        for at, part in enumerate(_split(block, count, limits)):
            path = " > ".join((*block.headings, head)) if head and at else heading
            chunks.append(Chunk(path, start + part.start, start + part.end, part.tokens))
    if pending:
        chunks.append(pending)
    if len(chunks) > limits.max_chunks:
        raise TooManyChunks
    return text, chunks


def _bounded(count: CountTokens) -> CountTokens:
    """Counts a very long text as one token per character: it is split in any case, and counting takes memory."""
    return lambda text: count(text) if len(text) <= _MAX_COUNTED_CHARACTERS else len(text)


def _table_head(block: Block) -> str:
    """The names of a table's columns, which the later parts of a split table have above them."""
    if block.kind is not BlockKind.TABLE:
        return ""
    cells = block.text.partition("\n")[0].strip().strip("|").split("|")
    return " | ".join(cell.strip() for cell in cells)[:200]


def _split(block: Block, count: CountTokens, limits: ChunkLimits) -> Iterator[_Span]:
    """Parts of a block of at most ``max_tokens``, as offsets into its text."""
    borders = {BlockKind.PARAGRAPH: _SENTENCE_END, BlockKind.CODE: _LINE_START}.get(block.kind, _ROW_START)
    pieces = list(_pieces(block.text, 0, len(block.text), borders, count, limits.max_tokens))
    overlaps = block.kind is BlockKind.PARAGRAPH
    at = 0
    while at < len(pieces):
        end, tokens = at + 1, pieces[at].tokens
        while end < len(pieces) and tokens + pieces[end].tokens <= limits.max_tokens:
            tokens += pieces[end].tokens
            end += 1
        start = pieces[at].start
        if (
            overlaps
            and at
            and (last := pieces[at - 1]).tokens <= min(limits.max_overlap_tokens, limits.max_tokens - tokens)
        ):
            start, tokens = last.start, tokens + last.tokens
        yield _trimmed(block.text, start, pieces[end - 1].end, tokens)
        at = end


def _pieces(
    text: str, start: int, end: int, borders: re.Pattern[str], count: CountTokens, max_tokens: int
) -> Iterator[_Span]:
    """Cuts ``text[start:end]`` at the borders; a piece that is still too large is cut at words, then in half."""
    positions = [start, *(match.end() for match in borders.finditer(text, start, end)), end]
    for first, last in pairwise(positions):
        if first == last:
            continue
        tokens = count(text[first:last])
        if tokens <= max_tokens or last - first == 1:
            yield _Span(first, last, tokens)
        elif borders is not _WORD_START:
            yield from _pieces(text, first, last, _WORD_START, count, max_tokens)
        else:
            middle = (first + last) // 2
            yield from _pieces(text, first, middle, _WORD_START, count, max_tokens)
            yield from _pieces(text, middle, last, _WORD_START, count, max_tokens)


def _trimmed(text: str, start: int, end: int, tokens: int) -> _Span:
    while end > start + 1 and text[end - 1].isspace():
        end -= 1
    return _Span(start, end, tokens)
