"""Documents that answers rest on: passages that a search finds, and citations of them in a reply."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class DocumentState(StrEnum):
    """How far a document has been read."""

    WAITING = "waiting"
    READING = "reading"
    READY = "ready"
    FAILED = "failed"  #: the document's ``error`` says why


class SearchWay(StrEnum):
    """How passages are searched."""

    TEXT = "text"  #: words, with prefixes and typos
    DENSE = "dense"  #: meaning, by an encoder's vectors
    FUSED = "fused"  #: both, merged by reciprocal rank


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
    score: float  #: higher is better; comparable within one search only


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
