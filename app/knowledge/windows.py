"""Cuts a chunk into the windows that an encoder reads.

A vector of a whole chunk is near to no question in particular, and an encoder may read only the beginning: that of
all-MiniLM-L6-v2 is 256 tokens. A window is a few sentences, under the headings that say what they are about.
"""

from __future__ import annotations

import re

MAX_CHARS = 200
"""Sentences are joined up to this length, about thirty words: searches with it were better than with twice of it."""
MAX_SENTENCE_CHARS = 600
_SENTENCE_END = re.compile(r"(?<=[.!?:])\s+|(?<=[。！？])|\n+")


def windows_of(place: str, text: str) -> list[str]:
    """Returns the windows of a chunk, at least one, each behind its place.

    Args:
        place: the document's title and the headings.
    """
    windows: list[str] = []
    for sentence in filter(None, map(str.strip, _SENTENCE_END.split(text))):
        for start in range(0, len(sentence), MAX_SENTENCE_CHARS):
            part = sentence[start : start + MAX_SENTENCE_CHARS]
            if windows and len(windows[-1]) + len(part) < MAX_CHARS:
                windows[-1] += " " + part
            else:
                windows.append(part)
    return [f"{place}: {window}" for window in windows] or [place]
