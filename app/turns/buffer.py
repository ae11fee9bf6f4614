"""The text of a reply in flight: one task appends to it, many readers read it, each at its own offset."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import AsyncIterator

from app.errors import NotFound
from app.turns.events import TurnEnd, TurnEvent, TurnNotice, TurnProgress, TurnText
from app.turns.readers import ChangeCallback


class ReplyBuffer:
    """An append-only, offset-addressed text buffer. Belongs to one event loop.

    Keeps no queue per reader: a slow reader gets all new text in one piece when it returns, and an
    abandoned reader costs nothing.
    """

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._ends: list[int] = []  # offset after each piece
        self._sampled_at: list[float | None] = []  # of each piece
        self._progress: TurnProgress | None = None
        self._notice: TurnNotice | None = None
        self._end: TurnEnd | NotFound | None = None
        self._readers: set[BufferReader] = set()

    def __len__(self) -> int:
        """Characters so far."""
        return self._ends[-1] if self._ends else 0

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    @property
    def progress(self) -> TurnProgress | None:
        """Prompt progress; None once the text begins."""
        return self._progress

    @property
    def end(self) -> TurnEnd | NotFound | None:
        """How the reply ended; :class:`NotFound` if it was deleted, None while it is in flight."""
        return self._end

    def append(self, text: str, sampled_at: float | None = None) -> None:
        """``sampled_at``: ``time.monotonic`` when the first token of ``text`` was sampled."""
        if text:
            self._pieces.append(text)
            self._ends.append(len(self) + len(text))
            self._sampled_at.append(sampled_at)
            self._progress = None
            self._notify_readers()

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

    def text_from(self, offset: int) -> str:
        """The text from ``offset`` on. Costs O(new text), not O(reply)."""
        first = bisect_right(self._ends, offset)
        if first == len(self._ends):
            return ""
        start = self._ends[first - 1] if first else 0
        return "".join([self._pieces[first][offset - start :], *self._pieces[first + 1 :]])

    def sampled_at(self, offset: int) -> float | None:
        """When the first token of the piece at ``offset`` was sampled (``time.monotonic``); None if unknown."""
        return self._sampled_at[bisect_right(self._ends, offset)]

    def reader(self, offset: int, changed: ChangeCallback) -> BufferReader:
        """A reader at ``offset``; ``changed`` is called on every change from now on. The caller closes it."""
        return BufferReader(self, offset, changed)

    async def follow(self, offset: int) -> AsyncIterator[TurnEvent]:
        """Yields everything from ``offset`` on as it arrives, :class:`TurnEnd` last.

        Raises:
            NotFound: at the end, if the reply was deleted.
        """
        changed = asyncio.Event()
        reader = self.reader(offset, lambda _ended: changed.set())
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

    def __init__(self, buffer: ReplyBuffer, offset: int, changed: ChangeCallback) -> None:
        self.ended = False
        self.changed = changed
        self._buffer = buffer
        self._offset = offset
        self._progress: TurnProgress | None = None
        self._notice = buffer._notice
        self._came_at = len(buffer)
        buffer._readers.add(self)

    def take(self) -> list[TurnEvent]:
        buffer, events = self._buffer, list[TurnEvent]()
        if buffer._progress is not None and buffer._progress is not self._progress:
            self._progress = buffer._progress
            events.append(self._progress)
        if buffer._notice is not None and buffer._notice is not self._notice:
            self._notice = buffer._notice
            events.append(self._notice)
        if text := buffer.text_from(self._offset):
            # Text older than the reader has no meaningful delivery latency.
            sampled_at = buffer.sampled_at(self._offset) if self._offset >= self._came_at else None
            self._offset += len(text)
            events.append(TurnText(text, self._offset, sampled_at))
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

    async def close(self) -> None:
        self._buffer._readers.discard(self)
