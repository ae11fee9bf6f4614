"""The words of a chunk in the form that both databases index.

Words are folded, reduced to their stems, and stored with a prefix of their collection, so that a search never meets
the words of a collection that it does not ask for: neither its results nor its time tell of them.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import NamedTuple

from app.domain.words import fold_words
from app.store.knowledge.stems import stem

MAX_ENTRY_WORDS = 2000  # PostgreSQL limits an entry to one megabyte; a chunk has some hundreds


class EntryWords(NamedTuple):
    """The columns of a :class:`~app.store.db.knowledge_models.ChunkEntry`."""

    title: str
    heading: str
    words: str


def chunk_entry(dialect: str, collection_id: str, title: str, heading: str, text: str) -> EntryWords:
    """The words of one chunk."""
    begins = collection_mark(collection_id)
    fields = [[begins + word for word in stems(field)[:MAX_ENTRY_WORDS]] for field in (title, heading, text)]
    if dialect == "sqlite":
        return EntryWords(*(" ".join(field) for field in fields))
    return EntryWords("", "", _ts_vector(fields))


def stems(text: str) -> list[str]:
    """The folded words of a text, reduced to their stems."""
    return [stem(word) for word in fold_words(text)]


@lru_cache(maxsize=1024)
def collection_mark(collection_id: str) -> str:
    """The prefix of a collection's words. If two collide, the filter on the collection still separates them."""
    return hashlib.blake2b(collection_id.encode(), digest_size=4).hexdigest()


def _ts_vector(fields: list[list[str]]) -> str:
    """A tsvector literal whose positions are weighted A (title), B (heading) and D (text)."""
    places: dict[str, list[str]] = {}
    at = 0
    for weight, field in zip(("A", "B", ""), fields, strict=True):
        for word in field:
            at += 1
            places.setdefault(word, []).append(f"{at}{weight}")
    return " ".join(f"'{word}':{','.join(where[:255])}" for word, where in places.items())
