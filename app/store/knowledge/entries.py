"""The words of a chunk in the form that both databases index.

Words are folded, reduced to their stems, and stored with a prefix of their collection, so that a search never meets
the words of a collection that it does not ask for: neither its results nor its time tell of them. Those of title and
heading are there a second time, with another prefix: of a word that many chunks have, a search takes these first.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from app.domain.words import fold_words
from app.store.knowledge.stems import stem

MAX_ENTRY_WORDS = 2000  # PostgreSQL limits an entry to one megabyte; a chunk has some hundreds
_MARK_CHARS = 8
HEADING = "#"
"""Begins a word that stands for itself in a title or heading."""


@dataclass(frozen=True, slots=True)
class EntryStems:
    """The stems of a chunk."""

    title: Sequence[str]
    heading: Sequence[str]
    text: Sequence[str]

    @classmethod
    def of(cls, title: str, heading: str, text: str) -> EntryStems:
        return cls(*(stems(field)[:MAX_ENTRY_WORDS] for field in (title, heading, text)))

    def distinct(self) -> set[str]:
        """Each word once, those of title and heading also with :data:`HEADING`."""
        above = {*self.title, *self.heading}
        return above.union(self.text, (HEADING + word for word in above))

    def columns(self, dialect: str, collection_id: str) -> dict[str, str]:
        """The columns of a :class:`~app.store.db.knowledge_models.ChunkEntry`."""
        above = [HEADING + word for word in dict.fromkeys((*self.title, *self.heading))]
        title, heading, text = (
            [indexed_word(collection_id, word) for word in field]
            for field in (self.title, [*self.heading, *above], self.text)
        )
        if dialect == "sqlite":
            return {"title": " ".join(title), "heading": " ".join(heading), "words": " ".join(text)}
        return {"title": "", "heading": "", "words": _ts_vector({"A": title, "B": heading, "": text})}


def entry_words(dialect: str, collection_id: str, columns: Sequence[str]) -> set[str]:
    """The words of a stored entry, as :meth:`EntryStems.distinct` had them.

    Args:
        columns: title, heading and words; PostgreSQL's words as text.
    """
    if dialect == "sqlite":
        indexed = {word for column in columns for word in column.split()}
    else:
        indexed = set(columns[-1].split("'")[1::2])  # 'word':1A,2B 'other':3; folded words have no apostrophe
    above = _mark(collection_id + HEADING)
    return {HEADING + word[_MARK_CHARS:] if word.startswith(above) else word[_MARK_CHARS:] for word in indexed}


def stems(text: str) -> list[str]:
    """The folded words of a text, reduced to their stems."""
    return [stem(word) for word in fold_words(text)]


def indexed_word(collection_id: str, word: str) -> str:
    """A word as the index of a collection has it."""
    if word.startswith(HEADING):
        return _mark(collection_id + HEADING) + word[len(HEADING) :]
    return _mark(collection_id) + word


@lru_cache(maxsize=2048)
def _mark(name: str) -> str:
    """The prefix of a collection's words. If two collide, the filter on the collection still separates them."""
    return hashlib.blake2b(name.encode(), digest_size=_MARK_CHARS // 2).hexdigest()


def _ts_vector(fields: Mapping[str, Sequence[str]]) -> str:
    """A tsvector literal whose positions have the weights that are the keys."""
    places: dict[str, list[str]] = {}
    at = 0
    for weight, field in fields.items():
        for word in field:
            at += 1
            places.setdefault(word, []).append(f"{at}{weight}")
    return " ".join(f"'{word}':{','.join(where[:255])}" for word, where in places.items())
