"""Splits texts into folded words for searching, in any language.

Both databases get words that were split and folded here, so that both find the same. They are stored: another split or
fold needs an index built anew.

The engine's word filter (``engine.text.word_matching``) folds otherwise, on purpose. A search finds "cafe" in "café"
and skips no character; the filter tells the two apart and drops invisible characters, folds one character at a time,
and lets a word in Bopomofo or Yi begin anywhere, where the index has whole runs of them as one word.
"""

from __future__ import annotations

import math
import re
import time
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import regex

from app.domain.markdown_marks import mark_positions

MAX_WORD_CHARS = 64
_WORDS_BETWEEN_LOOKS = 200  # between two checks of the deadline
SNIPPET_BEFORE = 40
SNIPPET_AFTER = 100

# Scripts written without spaces: every character is a word, and a search term is a sequence of them.
_UNSPACED = "".join(
    rf"\p{{{script}}}" for script in ("Han", "Hiragana", "Katakana", "Thai", "Lao", "Khmer", "Myanmar", "Tibetan")
)
_WORD = regex.compile(rf"[{_UNSPACED}]|[[\p{{L}}\p{{N}}\p{{M}}]--[{_UNSPACED}]]+", regex.V1)
_NO_WORD = regex.compile(r"[^\p{L}\p{N}\p{M}]")
# Accents of Latin, Greek and Cyrillic. The combining marks of other scripts are more than accents.
_ACCENTS = dict.fromkeys(range(0x300, 0x370))
_SPACE = re.compile(r"\s+")
_PART = regex.compile(r'"([^"]*)"?|(\S+)')

Phrase = tuple[str, ...]
"""Consecutive words. The last one matches as a prefix."""


class Word(NamedTuple):
    """A word and its position in the text."""

    folded: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class SnippetPart:
    """A piece of a text; ``hit`` marks a match."""

    text: str
    hit: bool = False


def fold(word: str) -> str:
    """``word`` without case, accents and typographic variants; may be empty."""
    if word.isascii():
        return word[:MAX_WORD_CHARS].casefold()
    bare = unicodedata.normalize("NFKD", word[:MAX_WORD_CHARS]).translate(_ACCENTS)
    bare = unicodedata.normalize("NFC", bare.casefold())
    return str(_NO_WORD.sub("", bare))


def words(text: str, start: int = 0) -> Iterator[Word]:
    """The words of ``text``, starting at character ``start``."""
    for match in _WORD.finditer(text, start):
        folded = fold(match.group())
        if folded:
            yield Word(folded, match.start(), match.end())


def fold_words(text: str) -> list[str]:
    """The folded words of ``text``, without positions. Every message passes here, beside the engine, so it makes a
    single call of ``regex``: each call releases the GIL and waits for the engine to get it back."""
    return [word for found in _WORD.findall(text) if (word := fold(found))]


def phrases(query: str) -> tuple[Phrase, ...]:
    """The phrases of a query: a match contains all of them. Empty if the query has no word.

    Text without spaces (``C:\\temp``, a run of Chinese characters) and quoted text must match as a phrase.
    """
    found = []
    for quoted, plain in _PART.findall(query):
        if phrase := tuple(fold_words(quoted or plain)):
            found.append(phrase)
    return tuple(found)


def snippet(text: str, wanted: Sequence[Phrase], until: float = math.inf) -> tuple[SnippetPart, ...]:
    """The text around the first match, on one line, with … where it is cut.

    Args:
        until: deadline on ``time.monotonic``; if no match is found by then, the beginning of the text is
            shown.
    """
    first = next(_spans(text, wanted, 0, until), (0, 0))
    start, end = _window(text, first)
    return _parts(text, start, end, [span for span in _spans(text[:end], wanted, start) if span[0] >= start])


def literal_snippet(text: str, wanted: str, until: float = math.inf) -> tuple[SnippetPart, ...]:
    """As :func:`snippet`, for ``wanted`` as a literal string, regardless of case."""
    if time.monotonic() > until:
        return _parts(text, *_window(text, (0, 0)), [])
    # Folding can lengthen a text (ß becomes ss), so the found position is verified before it is marked.
    at = max(text.casefold().find(wanted.casefold()), 0)
    hit = (at, at + len(wanted))
    start, end = _window(text, hit)
    return _parts(text, start, end, [hit] if text[slice(*hit)].casefold() == wanted.casefold() else [])


def _spans(text: str, wanted: Sequence[Phrase], start: int, until: float = math.inf) -> Iterator[tuple[int, int]]:
    """Matches of the phrases in ``text``: start, and end (exclusive)."""
    longest = max(map(len, wanted), default=0)
    recent: list[Word] = []
    for number, word in enumerate(words(text, start)):
        if number % _WORDS_BETWEEN_LOOKS == 0 and time.monotonic() > until:
            return
        recent = [*recent[-(longest - 1) :], word] if longest > 1 else [word]
        for phrase in wanted:
            tail = recent[-len(phrase) :]
            if (
                len(tail) == len(phrase)
                and word.folded.startswith(phrase[-1])
                and all(one.folded == other for one, other in zip(tail[:-1], phrase[:-1], strict=True))
            ):
                yield tail[0].start, word.end
                break


def _window(text: str, hit: tuple[int, int]) -> tuple[int, int]:
    return max(hit[0] - SNIPPET_BEFORE, 0), min(hit[1] + SNIPPET_AFTER, len(text))


def _parts(text: str, start: int, end: int, spans: Sequence[tuple[int, int]]) -> tuple[SnippetPart, ...]:
    marks = mark_positions(text, start, end)

    def plain(first: int, last: int) -> SnippetPart:
        return SnippetPart("".join(text[at] for at in range(first, last) if at not in marks))

    parts = [SnippetPart("…")] if start else []
    at = start
    for first, last in spans:
        if first < at:  # overlaps the previous one
            continue
        parts += [plain(at, first), SnippetPart(text[first:last], hit=True)]
        at = last
    parts += [plain(at, end), SnippetPart("…" if end < len(text) else "")]
    return tuple(SnippetPart(_SPACE.sub(" ", part.text), part.hit) for part in parts if part.text)
