"""The text of a reply in flight: one task appends to it, many readers read it, each at its own offset."""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_right
from collections.abc import AsyncIterator, Sequence

from app.domain.citations import citations_of
from app.domain.knowledge import Citation, Passage
from app.domain.tool_use import ToolUse
from app.domain.views import Reasoning
from app.errors import NotFound
from app.turns.events import (
    TurnCitations,
    TurnEnd,
    TurnEvent,
    TurnNotice,
    TurnProgress,
    TurnReasoning,
    TurnText,
    TurnToolUse,
)
from app.turns.readers import ChangeCallback


class GrowingText:
    """An append-only text in pieces, addressed by offset."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._ends: list[int] = []  # offset after each piece
        self._sampled_at: list[float | None] = []  # of each piece

    def __len__(self) -> int:
        """Characters so far."""
        return self._ends[-1] if self._ends else 0

    def __str__(self) -> str:
        return "".join(self._pieces)

    def append(self, text: str, sampled_at: float | None) -> None:
        self._pieces.append(text)
        self._ends.append(len(self) + len(text))
        self._sampled_at.append(sampled_at)

    def text_from(self, offset: int) -> str:
        """The text from ``offset`` on. Costs O(new text), not O(whole text)."""
        first = bisect_right(self._ends, offset)
        if first == len(self._ends):
            return ""
        start = self._ends[first - 1] if first else 0
        return "".join([self._pieces[first][offset - start :], *self._pieces[first + 1 :]])

    def sampled_at(self, offset: int) -> float | None:
        """When the first token of the piece at ``offset`` was sampled (``time.monotonic``); None if unknown."""
        return self._sampled_at[bisect_right(self._ends, offset)]


class ReplyBuffer:
    """The text of a reply and its thinking, both append-only and offset-addressed. Belongs to one event loop.

    Keeps no queue per reader: a slow reader gets all new text in one piece when it returns, and an
    abandoned reader costs nothing.
    """

    def __init__(self, sources: Sequence[Passage] = ()) -> None:
        """``sources``: the passages that the reply was given, which it may cite."""
        self._sources = sources
        self._citations: tuple[Citation, ...] = ()
        self._text = GrowingText()
        self._reasoning = GrowingText()
        self._thinking_since: float | None = None  # time.monotonic; None while the model does not think
        self._thought_seconds = 0.0  # before that
        self._tool_uses: tuple[ToolUse, ...] = ()
        self._progress: TurnProgress | None = None
        self._notice: TurnNotice | None = None
        self._end: TurnEnd | NotFound | None = None
        self._readers: set[BufferReader] = set()

    def __len__(self) -> int:
        """Characters of the text so far, without the thinking."""
        return len(self._text)

    @property
    def text(self) -> str:
        return str(self._text)

    @property
    def reasoning_chars(self) -> int:
        """Characters of the thinking so far."""
        return len(self._reasoning)

    @property
    def reasoning(self) -> Reasoning | None:
        """The thinking so far; None if there is none."""
        return Reasoning(str(self._reasoning), self.reasoning_seconds) if len(self._reasoning) else None

    @property
    def reasoning_seconds(self) -> float:
        """How long the model has thought so far."""
        since = self._thinking_since
        return self._thought_seconds + (time.monotonic() - since if since is not None else 0.0)

    @property
    def is_thinking(self) -> bool:
        """Whether what came last is thinking, so that more of it may follow."""
        return self._thinking_since is not None

    @property
    def tool_uses(self) -> tuple[ToolUse, ...]:
        """The calls of tools so far, in the order in which they were made."""
        return self._tool_uses

    @property
    def citations(self) -> tuple[Citation, ...]:
        """The sources that the text cites so far."""
        return self._citations

    @property
    def progress(self) -> TurnProgress | None:
        """Prompt progress; None once the reply begins."""
        return self._progress

    @property
    def end(self) -> TurnEnd | NotFound | None:
        """How the reply ended; :class:`NotFound` if it was deleted, None while it is in flight."""
        return self._end

    def append(self, text: str, sampled_at: float | None = None) -> None:
        """``sampled_at``: ``time.monotonic`` when the first token of ``text`` was sampled."""
        if text:
            self.end_thinking(sampled_at)
            self._text.append(text, sampled_at)
            if self._sources and ("]" in text or "`" in text):  # the end of a citation, or of code
                self._cite()
            self._progress = None
            self._notify_readers()

    def _cite(self) -> None:
        citations = citations_of(self.text, self._sources)
        if citations != self._citations:  # readers compare by identity
            self._citations = citations

    def append_reasoning(self, text: str, sampled_at: float | None = None) -> None:
        """As :meth:`append`, for the thinking. Its clock runs from here to the text that follows."""
        if text:
            if self._thinking_since is None:
                self._thinking_since = sampled_at if sampled_at is not None else time.monotonic()
            self._reasoning.append(text, sampled_at)
            self._progress = None
            self._notify_readers()

    def end_thinking(self, at: float | None = None) -> None:
        """Stops the clock of the thinking, at ``at`` or now."""
        if self._thinking_since is not None:
            now = time.monotonic() if at is None else at
            self._thought_seconds += max(0.0, now - self._thinking_since)
            self._thinking_since = None
            self._notify_readers()

    def set_tool_uses(self, tool_uses: tuple[ToolUse, ...]) -> None:
        """Replaces the calls of tools. None is ever removed."""
        self.end_thinking()
        self._tool_uses = tool_uses
        self._progress = None
        self._notify_readers()

    def restore(self, text: str, reasoning: Reasoning | None, tool_uses: tuple[ToolUse, ...] = ()) -> None:
        """Puts what a resumed reply has already into the empty buffer."""
        self._tool_uses = tool_uses
        if reasoning is not None:
            self._reasoning.append(reasoning.text, None)
            self._thought_seconds = reasoning.seconds
        self.append(text)

    def set_progress(self, progress: TurnProgress) -> None:
        self._progress = progress
        self._notify_readers()

    def notify(self, notice: TurnNotice) -> None:
        """Sends ``notice`` to the current readers. A reader that attaches later does not get it."""
        self._notice = notice
        self._notify_readers()

    def close(self, end: TurnEnd | NotFound) -> None:
        """Ends the reply; nothing is appended after this. Readers get ``end``, a :class:`NotFound` by exception."""
        self._end = end
        self._notify_readers()

    def reader(self, offset: int, changed: ChangeCallback, reasoning_offset: int = 0) -> BufferReader:
        """A reader at these offsets; ``changed`` is called on every change from now on. The caller closes it."""
        return BufferReader(self, offset, changed, reasoning_offset)

    async def follow(self, offset: int, reasoning_offset: int = 0) -> AsyncIterator[TurnEvent]:
        """Yields everything from the offsets on as it arrives, :class:`TurnEnd` last.

        Raises:
            NotFound: at the end, if the reply was deleted.
        """
        changed = asyncio.Event()
        reader = self.reader(offset, lambda _ended: changed.set(), reasoning_offset)
        try:
            while not reader.ended:
                changed.clear()
                for event in reader.take():
                    yield event
                if not reader.ended:
                    await changed.wait()
        finally:
            await reader.close()

    def _notify_readers(self) -> None:
        for reader in self._readers:
            reader.changed(self._end is not None)


class BufferReader:
    """One reader's position in a buffer; implements :class:`app.turns.readers.TurnReader`."""

    def __init__(self, buffer: ReplyBuffer, offset: int, changed: ChangeCallback, reasoning_offset: int = 0) -> None:
        self.ended = False
        self.changed = changed
        self._buffer = buffer
        self._offset = offset
        self._reasoning_offset = reasoning_offset
        self._knows_thinking_ended = False
        self._tool_uses: tuple[ToolUse, ...] = ()
        self._citations: tuple[Citation, ...] = ()
        self._progress: TurnProgress | None = None
        self._notice = buffer._notice
        self._came_at = len(buffer)
        self._reasoning_came_at = buffer.reasoning_chars
        buffer._readers.add(self)

    def take(self) -> list[TurnEvent]:
        buffer, events = self._buffer, list[TurnEvent]()
        if buffer._progress is not None and buffer._progress is not self._progress:
            self._progress = buffer._progress
            events.append(self._progress)
        if buffer._notice is not None and buffer._notice is not self._notice:
            self._notice = buffer._notice
            events.append(self._notice)
        if (thought := self._take_reasoning()) is not None:
            events.append(thought)
        if text := buffer._text.text_from(self._offset):
            # Text older than the reader has no meaningful delivery latency.
            sampled_at = buffer._text.sampled_at(self._offset) if self._offset >= self._came_at else None
            self._offset += len(text)
            events.append(TurnText(text, self._offset, sampled_at))
        if buffer.citations is not self._citations:
            self._citations = buffer.citations
            events.append(TurnCitations(self._citations))
        if buffer.tool_uses is not self._tool_uses:
            events += changed_tool_uses(self._tool_uses, buffer.tool_uses)
            self._tool_uses = buffer.tool_uses
        if buffer.end is not None and self._offset >= len(buffer):
            if not isinstance(buffer.end, NotFound):
                self.ended = True
                events.append(buffer.end)
            elif events:
                self.changed(True)  # deliver the events before raising
            else:
                self.ended = True
                raise buffer.end
        return events

    def _take_reasoning(self) -> TurnReasoning | None:
        """New thinking, or the news that it has ended."""
        buffer = self._buffer
        if not buffer.reasoning_chars:
            return None
        offset, ended = self._reasoning_offset, not buffer.is_thinking
        text = buffer._reasoning.text_from(offset)
        if not text and (self._knows_thinking_ended or not ended):
            return None
        sampled_at = buffer._reasoning.sampled_at(offset) if text and offset >= self._reasoning_came_at else None
        self._reasoning_offset = max(offset, buffer.reasoning_chars)
        self._knows_thinking_ended = ended
        return TurnReasoning(text, buffer.reasoning_chars, buffer.reasoning_seconds, ended, sampled_at)

    async def close(self) -> None:
        self._buffer._readers.discard(self)


def changed_tool_uses(known: tuple[ToolUse, ...], now: tuple[ToolUse, ...]) -> list[TurnEvent]:
    """Returns the events that tell a reader which calls are new or have changed."""
    return [TurnToolUse(use) for use in now if use not in known]
