"""What searching goes by: texts cut into words and folded, whatever their language.

Both databases get words that were cut and folded here, so that both find the same.
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
_WORDS_BETWEEN_LOOKS = 200  # at the clock
SNIPPET_BEFORE = 40
SNIPPET_AFTER = 100

# These scripts are written without spaces: every character is a word, and what is searched for is a row of them.
_UNSPACED = "".join(
    rf"\p{{{script}}}" for script in ("Han", "Hiragana", "Katakana", "Thai", "Lao", "Khmer", "Myanmar", "Tibetan")
)
_WORD = regex.compile(rf"[{_UNSPACED}]|[[\p{{L}}\p{{N}}\p{{M}}]--[{_UNSPACED}]]+", regex.V1)
_NO_WORD = regex.compile(r"[^\p{L}\p{N}\p{M}]")
# Accents of Latin, Greek and Cyrillic; the marks of other scripts are more than accents.
_ACCENTS = dict.fromkeys(range(0x300, 0x370))
_SPACE = re.compile(r"\s+")
_PART = regex.compile(r'"([^"]*)"?|(\S+)')

Phrase = tuple[str, ...]
"""Words that follow one another; the last one may go on."""


class Word(NamedTuple):
    """A word and where it stands in its text."""

    folded: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class SnippetPart:
    """A piece of a text; ``hit`` where it is what was searched for."""

    text: str
    hit: bool = False


def fold(word: str) -> str:
    """``word`` without case, accents and typographic variants; empty where nothing is left."""
    if word.isascii():
        return word[:MAX_WORD_CHARS].casefold()
    bare = unicodedata.normalize("NFKD", word[:MAX_WORD_CHARS]).translate(_ACCENTS)
    bare = unicodedata.normalize("NFC", bare.casefold())
    return str(_NO_WORD.sub("", bare))


def words(text: str, start: int = 0) -> Iterator[Word]:
    """The words of ``text``, from the character ``start`` on."""
    for match in _WORD.finditer(text, start):
        folded = fold(match.group())
        if folded:
            yield Word(folded, match.start(), match.end())


def fold_words(text: str) -> list[str]:
    """The words of ``text`` without their places. All that people and models write is cut so, beside the engine: one
    call of ``regex``, which lets go of Python's lock at each, and waits for the engine to get it back."""
    return [word for found in _WORD.findall(text) if (word := fold(found))]


def phrases(query: str) -> tuple[Phrase, ...]:
    """What must be in a text that ``query`` finds: all of these. Empty where the query has no word in it.

    What is written in one piece (``C:\\temp``, a row of Chinese characters) or in quotes stands so in the text.
    """
    found = []
    for quoted, plain in _PART.findall(query):
        if phrase := tuple(fold_words(quoted or plain)):
            found.append(phrase)
    return tuple(found)


def snippet(text: str, wanted: Sequence[Phrase], until: float = math.inf) -> tuple[SnippetPart, ...]:
    """The surroundings of the first of ``wanted`` in ``text``, on one line, with … where something is cut.

    Args:
        until: on ``time.monotonic``; a place that is not found by then is not looked for further, and the text's
            beginning is shown.
    """
    first = next(_spans(text, wanted, 0, until), (0, 0))
    start, end = _window(text, first)
    return _parts(text, start, end, [span for span in _spans(text[:end], wanted, start) if span[0] >= start])


def literal_snippet(text: str, wanted: str, until: float = math.inf) -> tuple[SnippetPart, ...]:
    """The same for ``wanted`` as it is written, whatever the case."""
    if time.monotonic() > until:
        return _parts(text, *_window(text, (0, 0)), [])
    # Folding can lengthen a text (ß becomes ss): what stands at the place is looked at before it is marked.
    at = max(text.casefold().find(wanted.casefold()), 0)
    hit = (at, at + len(wanted))
    start, end = _window(text, hit)
    return _parts(text, start, end, [hit] if text[slice(*hit)].casefold() == wanted.casefold() else [])


def _spans(text: str, wanted: Sequence[Phrase], start: int, until: float = math.inf) -> Iterator[tuple[int, int]]:
    """Where in ``text`` one of the phrases stands: first character, and the one after the last."""
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
        if first < at:  # it overlaps the one before
            continue
        parts += [plain(at, first), SnippetPart(text[first:last], hit=True)]
        at = last
    parts += [plain(at, end), SnippetPart("…" if end < len(text) else "")]
    return tuple(SnippetPart(_SPACE.sub(" ", part.text), part.hit) for part in parts if part.text)
