"""What a query asks for: its words, each with the words and phrases that may stand for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from app.domain.words import fold_words
from app.store.knowledge.stems import STOP_WORDS, stem

MAX_QUERY_WORDS = 24
MAX_PHRASE_WORDS = 4
MAX_SYNONYMS = 30
"""Of a word or phrase: each is looked up in every search."""
SYNONYM_WEIGHT = 0.7
"""How much a synonym counts beside the word that was asked for; that of a phrase, which is rarely meant otherwise."""
PHRASE_WEIGHT = 0.8

Phrase = tuple[str, ...]
"""Stems that stand for something only together."""


@dataclass(frozen=True, slots=True)
class Concept:
    """Something that a query asks for."""

    word: str  #: as asked, folded
    variants: Mapping[Phrase, float]  #: what finds it, with weights from above 0 to 1; the word's own stem first
    is_doubtful: bool = False  #: no chunk has the word, and those that it may misspell are likely others

    @property
    def own(self) -> str:
        """The stem of the word itself."""
        return stem(self.word)

    @property
    def has_synonyms(self) -> bool:
        return len(self.variants) > 1


class Thesaurus:
    """Words and phrases that stand for one another, by their stems.

    Args:
        groups: in each of which every word or phrase stands for every other. What is in two groups does not join them.
    """

    def __init__(self, groups: Iterable[Sequence[str]] = ()) -> None:
        self._others: dict[Phrase, dict[Phrase, None]] = {}
        for group in groups:
            phrases = list(dict.fromkeys(filter(None, map(_phrase, group))))
            for phrase in phrases:
                self._others.setdefault(phrase, {}).update(dict.fromkeys(one for one in phrases if one != phrase))

    def others(self, phrase: Phrase) -> Iterable[Phrase]:
        """Returns what stands for a phrase."""
        return islice(self._others.get(phrase, ()), MAX_SYNONYMS)


def read_query(query: str, thesaurus: Thesaurus) -> list[Concept]:
    """Returns the concepts of a query in its order, without those of stop words unless it has no others."""
    words = _telling_words(query)[:MAX_QUERY_WORDS]
    own = [stem(word) for word in words]
    found = [{(one,): 1.0} | dict.fromkeys(thesaurus.others((one,)), SYNONYM_WEIGHT) for one in own]
    for start, end in _spans(len(own)):
        for other in thesaurus.others(tuple(own[start:end])):
            for variants in found[start:end]:
                variants[other] = max(variants.get(other, 0.0), PHRASE_WEIGHT)
    concepts = {stem: Concept(word, variants) for stem, word, variants in zip(own, words, found, strict=True)}
    return list(concepts.values())


def query_words(query: str) -> list[str]:
    """Returns the stems that a query asks for, without stop words unless it has no others."""
    return list(dict.fromkeys(map(stem, _telling_words(query))))[:MAX_QUERY_WORDS]


def _spans(count: int) -> Iterator[tuple[int, int]]:
    for size in range(2, MAX_PHRASE_WORDS + 1):
        for start in range(count - size + 1):
            yield start, start + size


def _phrase(text: str) -> Phrase:
    return tuple(dict.fromkeys(map(stem, _telling_words(text))))[:MAX_PHRASE_WORDS]


def _telling_words(text: str) -> list[str]:
    words = fold_words(text)
    return [word for word in words if word not in STOP_WORDS] or words
