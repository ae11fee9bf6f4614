"""Documents that answers rest on: passages that a search finds, and citations of them in a reply."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

MAX_QUERY_CHARS = 2000
"""Of a search. Of a longer message, its first characters are searched for."""

WITHHELD = (
    "This passage isn't shown, because you may no longer use the document's collection. Ask an admin for the right to."
)


class DocumentState(StrEnum):
    """How far a document has been read."""

    WAITING = "waiting"
    READING = "reading"
    READY = "ready"
    FAILED = "failed"  #: the document's ``error`` says why


class DocumentSource(StrEnum):
    """How a document came in."""

    UPLOAD = "upload"
    FOLDER = "folder"  #: the watched folder
    CLI = "cli"
    CASE = "case"  #: a resolved case


class SearchWay(StrEnum):
    """How passages are searched."""

    TEXT = "text"  #: words, with prefixes and typos
    DENSE = "dense"  #: meaning, by an encoder's vectors
    FUSED = "fused"  #: both, merged by their scores


def place_of(title: str, heading: str) -> str:
    """A document's title and the headings below it. Many begin with their title as a heading: it is named once."""
    headings = heading.split(" > ") if heading else []
    return " > ".join([title, *(headings[1:] if headings[:1] == [title] else headings)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """A part of a document's version that a search has found.

    ``start`` and ``end`` are offsets, in characters, into the text that was read from that version.
    """

    document_id: str
    version: int
    title: str  #: of the document
    heading: str  #: the headings above it, outermost first, joined by " > "; empty if there is none
    text: str
    start: int
    end: int
    score: float  #: 0 to 1, higher is better; of about the same meaning in each way to search

    @property
    def place(self) -> str:
        """See :func:`place_of`."""
        return place_of(self.title, self.heading)

    def without_words(self) -> Passage:
        """What is left where a reader may not see the passage: its place among a reply's sources, which count."""
        return replace(self, heading="", text="")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkText:
    """A chunk that waits for its vector."""

    chunk_id: str
    collection_id: str
    place: str  #: the document's title and the headings, see :func:`place_of`
    text: str  #: the chunk's own words


@dataclass(frozen=True, slots=True)
class StoredVectors:
    """A chunk's vectors, as the database stores them."""

    vector: bytes  #: of the whole chunk
    windows: bytes  #: of its windows, one after another


@dataclass(frozen=True, slots=True, kw_only=True)
class Citation:
    """A passage that a reply cites by its number. It keeps the passage's words: the document may be deleted."""

    number: int  #: as in the text, from 1
    document_id: str
    version: int
    start: int
    end: int
    title: str
    heading: str
    text: str
    withheld: str | None = None  #: why the heading and the text are empty: a sentence for the user
    listed: bool = False  #: the reply only lists it as found, so that the passage is what there is to read

    @property
    def place(self) -> str:
        """See :func:`place_of`."""
        return place_of(self.title, self.heading)

    def without_words(self) -> Citation:
        """The citation as a user sees it who may not read the passage."""
        return replace(self, heading="", text="", withheld=WITHHELD)


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectionView:
    """A collection, as one user sees it."""

    id: str
    name: str
    description: str
    everyone: bool  #: every user may use it; otherwise admins and members only
    may_edit: bool  #: whether the viewing user may add and remove documents
    documents: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatTitle:
    id: str
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxName:
    id: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectionUse:
    """What a collection's deletion touches. Only the viewing user's own chats are named."""

    can_delete: bool  #: False for the collection that every knowledge base has
    documents: int
    chats: int  #: chats of all users whose settings name the collection; temporary ones are not counted
    own_chats: list[ChatTitle]  #: the latest of the viewing user's among them
    inboxes: list[InboxName]  #: that answer their visitors from it, by name


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectionMemberView:
    user_id: str
    name: str
    may_edit: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentView:
    """A document. ``version`` is the one that is searched; None until one has been read."""

    id: str
    collection: str
    name: str
    title: str
    kind: str
    version: int | None
    newest: int  #: the newest version, read or not; ``state``, ``error`` and ``progress`` are about it
    state: DocumentState
    error: str | None
    progress: float  #: 0 to 1
    chunks: int
    bytes: int  #: size of the newest version's file
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedDocument:
    """What adding a file did."""

    id: str
    version: int  #: the version that has this content
    state: DocumentState
    changed: bool  #: False if the newest version has this content already


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingJob:
    """A version that the caller has claimed to read."""

    document_id: str
    version: int
    name: str
    kind: str
    data: bytes
    index: EntryIndex
    has_stale_chunks: bool  #: some are to be deleted before the first one is stored


@dataclass(frozen=True, slots=True)
class EntryIndex:
    """Which index finds the words of a document: both databases store them in a form of their own."""

    collection_id: str
    dialect: str  #: of the database: sqlite or postgresql


@dataclass(frozen=True, slots=True, kw_only=True)
class NewChunk:
    """A part of a version to be stored. ``start`` and ``end`` are offsets into the version's text."""

    heading: str
    start: int
    end: int
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkView:
    """A chunk of a document, with its words."""

    ordinal: int
    heading: str
    text: str
    start: int
    end: int
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TextSpan:
    """A part of a version's text; ``start`` and ``end`` are offsets into the whole."""

    document_id: str
    version: int
    title: str
    text: str
    start: int
    end: int
    length: int  #: of the whole text
