"""Replies that no model writes: what was found, or that nothing was."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Sequence

from app.domain.knowledge import Citation, Passage
from app.domain.markdown_marks import escape_marks
from app.domain.text import one_line
from engine import Delta, Deltas, FinishReason, PreparedPrompt

NOTHING_FOUND = (
    "Nothing in the chosen sources answers this. Try other words, choose more sources, or add a document that "
    "answers it. A colleague may know; with the sources turned off, the model answers without them."
)
MAX_SHOWN_CHARS = 1200
"""Characters of a passage that a text shows; the citation has all of it."""

_NUMBER = re.compile(r"\\*\[(\^?\d+)\\*\]")


def passages_as_text(introduction: str, sources: Sequence[Passage | Citation]) -> str:
    """Returns the passages in Markdown below a sentence that says what they are, each with its citation.

    For readers who get a text and nothing else. What is stored in a chat is a listing instead: its reader may lose the
    right to the passages.
    """
    parts = [introduction]
    for number, source in enumerate(sources, start=1):
        heading = escape_marks(one_line(source.place))
        parts.append(f"**{heading}** [{number}]")
        text = source.text.strip()
        if len(text) > MAX_SHOWN_CHARS:
            text = f"{text[:MAX_SHOWN_CHARS].rstrip()} …"
        # Its own numbers in brackets are no citations. Not "\[", which the page reads as mathematics.
        parts.append("\n".join(f"> {line}" for line in _NUMBER.sub(r"[\1\\]", text).splitlines()))
    return "\n\n".join(parts)


class WrittenReply:
    """Streams a text in the model's place."""

    def __init__(self, text: str) -> None:
        self._text = text

    def stream(self, prepared: PreparedPrompt) -> Deltas:  # noqa: ARG002
        """Streams the text, whatever the prompt."""
        return Deltas(self._deltas())

    async def reply_tokens(self, text: str, token_ids: Sequence[int]) -> tuple[int, ...]:  # noqa: ARG002
        """Returns none: no model has sampled the text."""
        return ()

    async def _deltas(self) -> AsyncGenerator[Delta]:
        yield Delta("written", text=self._text, token_count=0)
        yield Delta("written", finish_reason=FinishReason.STOP, token_count=0)
