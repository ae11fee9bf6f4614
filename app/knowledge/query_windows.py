"""Cuts a long message into the queries that it holds.

A customer's mail says much that no document has: a greeting, what happened, when. As one query, each passage has a
small share of it, and nothing is found. So it is searched for sentence by sentence, and a passage has the score of the
one that fits best.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from app.domain.knowledge import MAX_QUERY_CHARS, Passage
from app.store.knowledge.concepts import MAX_QUERY_WORDS, query_words

MIN_WORDS = 4
"""Of a window, without stop words: "I can send photos" would find any passage about photos."""
MIN_MESSAGE_WORDS = 2 * MIN_WORDS
MAX_WINDOWS = 8
"""Of a message: each is a search. Questions come first."""
MAX_READ_CHARS = 20_000
"""Of a message. What it is about stands before that."""
STATEMENT_WEIGHT = 0.85
"""Of scores, where a window asks nothing: what a customer asks tells more than what they relate."""

# A line break ends no sentence: many mails have one after every 72 characters. A blank line does, and so does the next
# item of a list.
_END = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])\s*|\n\s*\n|\n(?=\s*(?:[-*•]|\d+[.)])\s)")
_QUESTION_MARKS = ("?", "？", "؟", "\u037e")  # also full width, Arabic, Greek


@dataclass(frozen=True, slots=True)
class Window:
    """A part of a message that is searched for by itself."""

    query: str
    weight: float  #: of its passages' scores, above 0 to 1


def windows_of(message: str) -> list[Window]:
    """Returns what to search for: a short message as it is, of a long one at most ``MAX_WINDOWS`` parts.

    One that fits into a query is also searched for as a whole.
    """
    whole = Window(message[:MAX_QUERY_CHARS], 1.0)
    parts = _parts(message)
    if not parts:
        return [whole]
    fits = len(query_words(message[:MAX_READ_CHARS])) < MAX_QUERY_WORDS
    return [*([whole] if fits else []), *parts[:MAX_WINDOWS]]


def question_in(message: str) -> str:
    """Returns what a message asks: of a long one, the first part that is a question; otherwise, how it begins."""
    parts = _parts(message)
    return parts[0].query if parts and parts[0].weight == 1.0 else message[:MAX_QUERY_CHARS]


def is_short(message: str) -> bool:
    """Whether a message has too few words to be searched for by itself."""
    return len(query_words(message)) < MIN_WORDS


def best_of(found: Iterable[tuple[Window, Iterable[Passage]]], *, limit: int) -> list[Passage]:
    """Merges what the windows of a message have found: each passage once, with its best score, best first."""
    best: dict[tuple[str, int, int], Passage] = {}
    for passage in chain.from_iterable(
        (replace(one, score=one.score * window.weight) for one in passages) for window, passages in found
    ):
        place = (passage.document_id, passage.version, passage.start)
        if place not in best or passage.score > best[place].score:
            best[place] = passage
    return sorted(best.values(), key=lambda one: -one.score)[:limit]


def _parts(message: str) -> list[Window]:
    """Returns the parts of a long message, its questions first; none of a short one."""
    message = message[:MAX_READ_CHARS]
    parts = list(_joined(_sentences(message)))
    if len(parts) < 2 or len(query_words(message)) < MIN_MESSAGE_WORDS:
        return []
    return sorted(parts, key=lambda part: -part.weight)  # stable: otherwise in the message's order


def _sentences(message: str) -> Iterator[str]:
    """Yields the sentences, cut where they are longer than a query."""
    for sentence in _END.split(message):
        words = sentence.split()
        for start in range(0, len(words), MAX_QUERY_WORDS):
            yield " ".join(words[start : start + MAX_QUERY_WORDS])[:MAX_QUERY_CHARS]


def _joined(sentences: Iterable[str]) -> Iterator[Window]:
    """Joins sentences of few words with the next. At the end they are thanks and a name, and left out, unless they ask
    something."""
    parts: list[str] = []
    words: set[str] = set()
    for sentence in sentences:
        parts.append(sentence)
        words.update(query_words(sentence))
        if len(words) >= MIN_WORDS:
            yield _window(parts)
            parts, words = [], set()
    if _asks(parts):
        yield _window(parts)


def _window(sentences: Sequence[str]) -> Window:
    query = " ".join(sentences).strip()[:MAX_QUERY_CHARS]
    return Window(query, 1.0 if _asks(sentences) else STATEMENT_WEIGHT)


def _asks(sentences: Sequence[str]) -> bool:
    return any(sentence.rstrip().endswith(_QUESTION_MARKS) for sentence in sentences)
