"""What readers return: a document's title and its blocks, each below its headings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from app.errors import TooLarge

#: Called with the fraction that is read, from 0 to 1.
Progress = Callable[[float], None]


MAX_HEADING_CHARS = 200
"""Every chunk has its headings. A longer one is text: it becomes a paragraph, and its beginning is the heading."""

_PARSER_STOPS = "Excessive depth"
"""What libxml2's messages begin with where elements stand in one another too deeply: in HTML, it drops what follows."""


class BlockKind(StrEnum):
    PARAGRAPH = "paragraph"
    LIST = "list"  #: one item per line; lines that belong to an item are indented
    TABLE = "table"  #: one row per line; the first row is the head
    CODE = "code"


@dataclass(frozen=True, slots=True)
class Block:
    """A part of a document that belongs together."""

    kind: BlockKind
    text: str
    headings: tuple[str, ...] = ()  #: outermost first
    page: int | None = None  #: from 1, where the format has pages


@dataclass(frozen=True, slots=True)
class ReadDocument:
    title: str
    blocks: list[Block]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingLimits:
    """Limits of one document. A document that exceeds one is refused, not cut."""

    max_bytes: int = 50 * 2**20  #: of the file
    max_unpacked_bytes: int = 250 * 2**20  #: of what a compressed file contains
    max_pages: int = 3000
    max_characters: int = 20_000_000  #: of text


@dataclass(slots=True)
class BlockBuilder:
    """Collects blocks and keeps the path of headings above them."""

    blocks: list[Block] = field(default_factory=list)
    _path: list[tuple[int, str]] = field(default_factory=list)
    _heading_is_empty: bool = False

    def heading(self, level: int, text: str) -> None:
        """Starts a section. ``level`` is 1 for the outermost. An empty heading ends the sections of its level."""
        text = " ".join(_storable(text).split())
        if self._path and level <= self._path[-1][0]:
            self._keep_empty_heading()
        while self._path and self._path[-1][0] >= level:
            self._path.pop()
        if text:
            self._path.append((level, _shortened(text)))
            self._heading_is_empty = True
        if len(text) > MAX_HEADING_CHARS:
            self.add(BlockKind.PARAGRAPH, text)

    def add(self, kind: BlockKind, text: str, page: int | None = None) -> None:
        """Adds a block below the current headings; whitespace alone adds nothing."""
        text = _storable(text).strip("\n").rstrip()
        if not text.strip():
            return
        self.blocks.append(Block(kind, text, tuple(heading for _, heading in self._path), page))
        self._heading_is_empty = False

    def finish(self, title: str) -> ReadDocument:
        self._keep_empty_heading()
        return ReadDocument(" ".join(_storable(title).split()), self.blocks)

    def _keep_empty_heading(self) -> None:
        """A heading with nothing below it becomes a paragraph, so that its words are found."""
        if self._heading_is_empty:
            *above, (_, text) = self._path
            self.blocks.append(Block(BlockKind.PARAGRAPH, text, tuple(heading for _, heading in above)))
            self._heading_is_empty = False


def _shortened(text: str) -> str:
    if len(text) <= MAX_HEADING_CHARS:
        return text
    beginning, _, rest = text[:MAX_HEADING_CHARS].rpartition(" ")
    return (beginning or rest) + "…"


def _storable(text: str) -> str:
    """The text without NUL and lone surrogates, which broken files contain and databases refuse."""
    return text.replace("\x00", "").encode("utf-8", "replace").decode("utf-8")


def require_shallow(name: str, message: str) -> None:
    """Refuses a file at whose nesting the parser of HTML and XML has stopped with this message.

    Raises:
        TooLarge: it has.
    """
    if message.startswith(_PARSER_STOPS):
        raise TooLarge(
            f"{name} has more than 256 elements inside one another, which is more than a document may have. Save it "
            "in a simpler form, such as text, and add it again."
        )


def table_text(rows: list[list[str]]) -> str:
    """Rows as lines of ``| cell | cell |``; line breaks and bars within cells become spaces and slashes."""
    cleaned = ([" ".join(cell.split()).replace("|", "/") for cell in row] for row in rows)
    return "\n".join("| " + " | ".join(row) + " |" for row in cleaned if any(row))
