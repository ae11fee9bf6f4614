"""The chunks that are worth scoring for a query, from the index of either database.

Neither database ranks: the cost of that grows with the chunks that have a common word. They list the chunks that have
the words that tell most, as many as :data:`MAX_LISTED` allows; what tells less only scores what the others have found.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import select, text
from sqlalchemy.orm import Session

from app.store.db import driver
from app.store.db.database import is_postgres
from app.store.db.knowledge_models import Chunk, ChunkEntry, Document
from app.store.db.prepared_statements import Prepared, is_among
from app.store.knowledge.bm25 import Statistics
from app.store.knowledge.concepts import Concept, Phrase
from app.store.knowledge.entries import HEADING, indexed_word

MAX_LISTED = 10_000
"""Chunks that the index lists for a query, summed over its words."""
MAX_LISTINGS = 100
MAX_CANDIDATES = 200
MAX_COMMON_WORDS = 3
"""Words that a chunk must have all of where each is in more than :data:`MAX_LISTED` chunks."""
HEADING_SHARE = 0.5
"""What a word in a heading adds, as a share of what the word tells."""
# One row for each listing: one for each chunk would take longer to fetch than to find. And one statement for any number
# of listings: PostgreSQL would plan each of a union.
_LISTED_BY_SQLITE = Prepared(
    text(
        "SELECT listing.key, (SELECT group_concat(rowid) FROM "
        "(SELECT rowid FROM kb_entry_fts WHERE kb_entry_fts MATCH listing.value LIMIT :limit)) "
        "FROM json_each(:queries) AS listing"
    )
)
_LISTED_BY_POSTGRES = Prepared(
    text(
        "SELECT listing.number - 1, (SELECT string_agg(CAST(id AS text), ',') FROM "
        "(SELECT id FROM kb_entry WHERE words @@ CAST(listing.query AS tsquery) LIMIT :limit) AS found) "
        "FROM unnest(CAST(:queries AS text[])) WITH ORDINALITY AS listing (query, number)"
    )
)

_OF_SEARCHED_VERSIONS = Prepared(
    select(ChunkEntry.id)
    .join(Chunk, Chunk.id == ChunkEntry.chunk_id)
    .join(Document, (Document.id == Chunk.document_id) & (Document.version == Chunk.version))
    .where(is_among(ChunkEntry.id, "ids"))
)

Ids = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Listing:
    """Chunks that have all of some words."""

    concept: int
    words: Phrase
    worth: float
    chunks: int  #: at most


def candidates(
    session: Session,
    collections: Sequence[str],
    concepts: Sequence[Concept],
    statistics: Statistics,
    *,
    skip_stale: bool = False,
) -> list[int]:
    """Returns the ids of the entries that are worth scoring, likely ones first.

    Args:
        skip_stale: leave out chunks of versions that are being stored or deleted. They would take the places of others,
            but hardly ever there are any, and to look costs time.
    """
    listings = _within_budget(_listings(concepts, statistics))
    if not listings:
        return _with_common_words(session, collections, concepts, statistics, skip_stale=skip_stale)
    found = dict(_listed(session, collections, [one.words for one in listings]))
    of_concepts = [
        _best_worths([(found[number], one.worth) for number, one in enumerate(listings) if one.concept == concept])
        for concept in range(2 * len(concepts))
    ]
    ids, at = np.unique(np.concatenate([one for one, _ in of_concepts]), return_inverse=True)
    totals = np.bincount(at, weights=np.concatenate([worths for _, worths in of_concepts]))
    likely: list[int] = ids[np.argsort(-totals, kind="stable")].tolist()
    return (_searched(session, likely) if skip_stale else likely)[:MAX_CANDIDATES]


def _best_worths(listed: Sequence[tuple[Ids, float]]) -> tuple[Ids, NDArray[np.float64]]:
    """Returns ids, each once, with the worth of the listing that tells most of those that have it."""
    if not listed:
        return np.empty(0, np.int64), np.empty(0)
    falling = sorted(listed, key=lambda one: -one[1])
    ids, first = np.unique(np.concatenate([found for found, _ in falling]), return_index=True)
    return ids, np.concatenate([np.full(len(found), worth) for found, worth in falling])[first]


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
    session: Session,
    collections: Sequence[str],
    concepts: Sequence[Concept],
    statistics: Statistics,
    *,
    skip_stale: bool,
) -> list[int]:
    """Entries with the rarest words, where all are common: all of them together, or else the rarest of them."""
    words = sorted(
        {(concept.own,) for concept in concepts if statistics.chunks((concept.own,))}, key=statistics.chunks
    )[:MAX_COMMON_WORDS]
    for count in range(len(words), 0, -1):
        together = tuple(word for phrase in words[:count] for word in phrase)
        limit = MAX_LISTED if skip_stale else MAX_CANDIDATES
        [(_, found)] = _listed(session, collections, [together], limit=limit)
        listed: list[int] = found.tolist()
        if skip_stale:
            listed = _searched(session, listed)[:MAX_CANDIDATES]
        if listed:
            return listed
    return []


def _searched(session: Session, entry_ids: Sequence[int]) -> list[int]:
    """Returns the entries of the versions that are searched."""
    found = {id for (id,) in _OF_SEARCHED_VERSIONS.rows(session.connection(), {"ids": entry_ids})}
    return [id for id in entry_ids if id in found]


def _listed(
    session: Session, collections: Sequence[str], phrases: Sequence[Phrase], limit: int = MAX_LISTED
) -> Iterator[tuple[int, Ids]]:
    """Yields the number of each phrase with the ids of the entries that have all its words."""
    connection = session.connection()
    if is_postgres(session):  # it expects many rows of a word, and would read all entries
        driver.run(connection, "SET LOCAL enable_seqscan = off")
        queries = [_tsquery(collections, one) for one in phrases]
        rows = _LISTED_BY_POSTGRES.rows(connection, {"queries": queries, "limit": limit})
    else:
        queries = [_fts5_query(collections, one) for one in phrases]
        rows = _LISTED_BY_SQLITE.rows(connection, {"queries": json.dumps(queries), "limit": limit})
    yield from ((number, _read_ids(ids)) for number, ids in rows)


def _read_ids(joined: str | None) -> Ids:
    return np.fromstring(joined, np.int64, sep=",") if joined else np.empty(0, np.int64)


def _tsquery(collections: Collection[str], phrase: Phrase) -> str:
    return " | ".join("(" + " & ".join(f"'{indexed_word(id, word)}'" for word in phrase) + ")" for id in collections)


def _fts5_query(collections: Collection[str], phrase: Phrase) -> str:
    return " OR ".join("(" + " AND ".join(f'"{indexed_word(id, word)}"' for word in phrase) + ")" for id in collections)
