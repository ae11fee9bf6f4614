"""The chunks that are worth scoring for a query, from the index of either database.

Neither database ranks: the cost of that grows with the chunks that have a common word. They list the chunks that have
the words that tell most, as many as :data:`MAX_LISTED` allows; what tells less only scores what the others have found.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from sqlalchemy import text
from sqlalchemy.orm import Session

from app.store.db.database import is_postgres
from app.store.knowledge.bm25 import Statistics
from app.store.knowledge.concepts import Concept, Phrase
from app.store.knowledge.entries import HEADING, indexed_word

MAX_LISTED = 10_000
"""Chunks that the index lists for a query, summed over its words. About 1 µs each in SQLite, 3 in PostgreSQL."""
MAX_LISTINGS = 100
MAX_CANDIDATES = 200
MAX_COMMON_WORDS = 3
"""Words that a chunk must have all of where each is in more than :data:`MAX_LISTED` chunks."""
HEADING_SHARE = 0.5
"""What a word in a heading adds, as a share of what the word tells."""
_LISTED_BY_SQLITE = (
    "SELECT * FROM (SELECT {number}, rowid FROM kb_entry_fts WHERE kb_entry_fts MATCH :query{number} LIMIT {limit})"
)
_LISTED_BY_POSTGRES = "(SELECT {number}, id FROM kb_entry WHERE words @@ CAST(:query{number} AS tsquery) LIMIT {limit})"


@dataclass(frozen=True, slots=True)
class _Listing:
    """Chunks that have all of some words."""

    concept: int
    words: Phrase
    worth: float
    chunks: int  #: at most


def candidates(
    session: Session, collections: Sequence[str], concepts: Sequence[Concept], statistics: Statistics
) -> list[int]:
    """Returns the ids of the entries that are worth scoring, likely ones first."""
    listings = _within_budget(_listings(concepts, statistics))
    if not listings:
        return _with_common_words(session, collections, concepts, statistics)
    best: list[dict[int, float]] = [defaultdict(float) for _ in range(2 * len(concepts))]
    for number, id in _listed(session, collections, [one.words for one in listings]):
        listing = listings[number]
        worths = best[listing.concept]
        worths[id] = max(worths[id], listing.worth)
    total: dict[int, float] = defaultdict(float)
    for worths in best:
        for id, worth in worths.items():
            total[id] += worth
    return heapq.nlargest(MAX_CANDIDATES, total, key=lambda id: (total[id], -id))


def _listings(concepts: Sequence[Concept], statistics: Statistics) -> Iterator[_Listing]:
    for number, concept in enumerate(concepts):
        for phrase, weight in concept.variants.items():
            worth = weight * statistics.information(phrase)
            yield _Listing(number, phrase, worth, statistics.chunks(phrase))
            above = tuple(HEADING + word for word in phrase)
            yield _Listing(len(concepts) + number, above, HEADING_SHARE * worth, statistics.chunks(above))


def _within_budget(listings: Iterator[_Listing]) -> list[_Listing]:
    """Those that tell most and together list at most :data:`MAX_LISTED` chunks."""
    taken, left = list[_Listing](), MAX_LISTED
    for listing in sorted(listings, key=lambda one: -one.worth):
        if 0 < listing.chunks <= left:
            taken.append(listing)
            left -= listing.chunks
    return taken[:MAX_LISTINGS]


def _with_common_words(
    session: Session, collections: Sequence[str], concepts: Sequence[Concept], statistics: Statistics
) -> list[int]:
    """Entries with the rarest words, where all are common: all of them together, or else the rarest of them."""
    words = sorted(
        {(concept.own,) for concept in concepts if statistics.chunks((concept.own,))}, key=statistics.chunks
    )[:MAX_COMMON_WORDS]
    for count in range(len(words), 0, -1):
        together = tuple(word for phrase in words[:count] for word in phrase)
        if found := [id for _, id in _listed(session, collections, [together], limit=MAX_CANDIDATES)]:
            return found
    return []


def _listed(
    session: Session, collections: Sequence[str], phrases: Sequence[Phrase], limit: int = MAX_LISTED
) -> Iterator[tuple[int, int]]:
    """Yields the number of each phrase with the ids of entries that have all its words."""
    postgres = is_postgres(session)
    if postgres:  # it expects many rows of a word that it has no statistics of, and would read all entries
        session.execute(text("SET LOCAL enable_seqscan = off"))
    each = _LISTED_BY_POSTGRES if postgres else _LISTED_BY_SQLITE
    statement = text(" UNION ALL ".join(each.format(number=n, limit=limit) for n in range(len(phrases))))
    expression = _tsquery if postgres else _fts5_query
    rows = session.execute(statement, {f"query{n}": expression(collections, one) for n, one in enumerate(phrases)})
    yield from ((number, id) for number, id in rows)


def _tsquery(collections: Collection[str], phrase: Phrase) -> str:
    return " | ".join("(" + " & ".join(f"'{indexed_word(id, word)}'" for word in phrase) + ")" for id in collections)


def _fts5_query(collections: Collection[str], phrase: Phrase) -> str:
    return " OR ".join("(" + " AND ".join(f'"{indexed_word(id, word)}"' for word in phrase) + ")" for id in collections)
