"""How relevant a chunk is for a query, by its words.

The formula is BM25F (S. Robertson and H. Zaragoza, The Probabilistic Relevance Framework: BM25 and Beyond, 2009,
section 3.6), with some changes. A concept counts by the variant that fits best. The sum is divided by the most that
the query's words could reach, so that scores are from 0 to 1, and those of two queries can be compared. And it shrinks
by the share of the query that a chunk lacks: one that has all words is before one that repeats a few; and by the share
that no chunk has, which changes no order, but tells a question about something else. The square root brings it to
about the cosine that all-MiniLM-L6-v2 has for passages that are as relevant.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from app.store.knowledge.concepts import Concept, Phrase
from app.store.knowledge.word_counts import EVERY_CHUNK

TITLE_WEIGHT, HEADING_WEIGHT = 1.0, 3.0
"""Occurrences in the text that a word in the title, or in the headings, is worth."""
SATURATION = 1.2
"""k1: with so many occurrences, a word has half of its score."""
LENGTH_NORMALIZATION = 0.4
"""b: 0 takes long chunks as they are, 1 divides the occurrences by the length."""
USUAL_TOKENS = 250
COVERAGE_POWER = 0.5
LEAST_INFORMATION = 0.7
"""Of the subject of a whole collection, which every chunk has: a question about it must find something."""
MAX_UNKNOWN_INFORMATION = 4.0
"""Of a word that no chunk has. It says that a question may be about something else, and people use many such words."""
CHUNKS_OF_COMMON_WORDS = 10
"""Few chunks lack many words that any text uses: with so many, an unknown word tells as much as the most common."""
MIN_KNOWN_SHARE = 0.1
"""A query of nothing but misspelt words finds still."""


class Occurrences(NamedTuple):
    """Where a chunk has a word."""

    title: int
    heading: int
    text: int


class WordChunk(NamedTuple):
    """The words of a query that a chunk has."""

    chunk_id: str
    tokens: int
    words: Mapping[str, Occurrences]  #: by stem


class Statistics:
    """How much words tell: the fewer chunks have one, the more.

    Args:
        chunks: by stem; of :data:`EVERY_CHUNK` all that are searched.
    """

    def __init__(self, chunks: Mapping[str, int]) -> None:
        self._chunks = chunks
        self._all = max(chunks.get(EVERY_CHUNK, 0), 1)
        self.unknown_information = max(
            LEAST_INFORMATION, min(MAX_UNKNOWN_INFORMATION, math.log1p(self._all / CHUNKS_OF_COMMON_WORDS))
        )
        """Of a word that no chunk has."""

    def chunks(self, phrase: Phrase) -> int:
        """Returns how many chunks have the phrase, at most."""
        return min(self._chunks.get(word, 0) for word in phrase)

    def information(self, phrase: Phrase) -> float:
        """Returns the inverse document frequency: larger for what fewer chunks have, within bounds."""
        chunks = min(self.chunks(phrase), self._all)
        if not chunks:
            return self.unknown_information
        return max(LEAST_INFORMATION, math.log1p((self._all - chunks + 0.5) / (chunks + 0.5)))


class Relevance:
    """Scores chunks for one query."""

    def __init__(self, concepts: Sequence[Concept], statistics: Statistics) -> None:
        worths = [
            {
                phrase: weight * statistics.information(phrase)
                for phrase, weight in concept.variants.items()
                if statistics.chunks(phrase)
            }
            for concept in concepts
        ]
        # by word, for speed: a chunk has few of them, and most variants are single words
        self._count = len(worths)
        self._words: dict[str, list[tuple[int, float]]] = {}
        self._phrases: list[tuple[int, Phrase, float]] = []
        for number, found in enumerate(worths):
            for phrase, worth in found.items():
                if len(phrase) == 1:
                    self._words.setdefault(phrase[0], []).append((number, worth))
                else:
                    self._phrases.append((number, phrase, worth))
        self._asked = known = 0.0
        for concept, found in zip(concepts, worths, strict=True):
            worth = max(found.values(), default=0.0)
            is_known = bool(found) and not concept.is_doubtful
            asked = worth if is_known else max(worth, statistics.unknown_information)
            self._asked += asked
            known += asked if is_known else 0.0
        self._known_share = max(MIN_KNOWN_SHARE, known / self._asked) if concepts else 0.0

    def of(self, chunk: WordChunk) -> float:
        """Returns the score of a chunk, 0 to 1; 0 if it has no word of the query."""
        long = 1 - LENGTH_NORMALIZATION + LENGTH_NORMALIZATION * chunk.tokens / USUAL_TOKENS
        frequencies = {
            word: TITLE_WEIGHT * (at.title > 0) + HEADING_WEIGHT * (at.heading > 0) + at.text / long
            for word, at in chunk.words.items()
        }
        best, has = [0.0] * self._count, [0.0] * self._count  # by concept
        variants = [
            (concept, worth, frequencies[word]) for word in frequencies for concept, worth in self._words.get(word, ())
        ]
        for concept, phrase, worth in self._phrases:
            if frequencies.keys() >= set(phrase):
                variants.append((concept, worth, min(frequencies[word] for word in phrase)))
        for concept, worth, frequency in variants:
            has[concept] = max(has[concept], worth)
            best[concept] = max(best[concept], worth * frequency / (frequency + SATURATION))
        found, covered = sum(best), sum(has)
        if not found:
            return 0.0
        return math.sqrt(found / self._asked * (covered / self._asked) ** COVERAGE_POWER * self._known_share)
