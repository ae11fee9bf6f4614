"""Sources of a reply: the passages that it was given, in the order of their numbers, and how a prompt shows them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from app.domain.knowledge import Passage
from app.domain.placed_text import PlacedText
from app.domain.text import one_line

_DELIMITER = re.compile(r"<(?=[\s/\u200b-\u200f\u2060\ufeff]*sources?\b)", re.IGNORECASE)


class SourcesPrompt:
    """Puts a user's message and the sources for its reply into one text: the same text for the same passages.

    Args:
        template: has ``{{ sources }}``, and after it ``{{ message }}``, once each.

    Raises:
        ValueError: it has not.
    """

    def __init__(self, template: str) -> None:
        self._text = PlacedText(template, "sources", "message")

    def with_sources(self, sources: Sequence[Passage], text: str) -> str:
        """Returns the message as the model is given it; as it is, without sources.

        A source without a text is left out, and the others keep their numbers.
        """
        shown = "\n".join(show_source(number, source) for number, source in enumerate(sources, start=1) if source.text)
        if not shown:
            return text
        return self._text.fill(shown, text).rstrip("\n")


def show_source(number: int, source: Passage) -> str:
    """Returns a source in its delimiters, which no text of a document can open or close."""
    about = f' title="{_attribute(source.title)}"'
    if source.heading:
        about += f' heading="{_attribute(source.heading)}"'
    return f'<source number="{number}"{about}>\n{_escape(source.text)}\n</source>'


def to_json(sources: Iterable[Passage]) -> list[dict[str, Any]]:
    """Returns the sources as they are stored."""
    return [asdict(source) for source in sources]


def from_json(stored: Iterable[dict[str, Any]]) -> tuple[Passage, ...]:
    """Reads stored sources."""
    return tuple(Passage(**source) for source in stored)


def _attribute(text: str) -> str:
    return _escape(one_line(text)).replace('"', "'").replace("<", "&lt;")


def _escape(text: str) -> str:
    return _DELIMITER.sub("&lt;", text)
