"""The text of a reply while it grows: appended by one task, read by many, each at its own offset."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import AsyncIterator

from app.errors import NotFound
from app.turns.events import TurnEnd, TurnEvent, TurnNotice, TurnProgress, TurnText


class ReplyBuffer:
    """Append-only and offset-addressed. Belongs to one event loop.

    Readers keep nothing here: one that falls behind finds everything new in one piece when it
    returns, and one that never returns costs nothing.
    """

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._ends: list[int] = []  # offset after each piece
        self._progress: TurnProgress | None = None
        self._notice: TurnNotice | None = None
        self._end: TurnEnd | NotFound | None = None
        # Set, and replaced by a new one, at each change: waiters need no lock, and none misses a change.
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        """Characters so far."""
        return self._ends[-1] if self._ends else 0

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    @property
    def progress(self) -> TurnProgress | None:
        """How far the prompt was read, until the text begins."""
        return self._progress

    @property
    def end(self) -> TurnEnd | NotFound | None:
        """How it ended; :class:`NotFound` where it was deleted."""
        return self._end

    def append(self, text: str) -> None:
        if text:
            self._pieces.append(text)
            self._ends.append(len(self) + len(text))
            self._progress = None
            self._wake()

    def report(self, progress: TurnProgress) -> None:
        self._progress = progress
        self._wake()

    def notify(self, notice: TurnNotice) -> None:
        """Tell the readers of now; those who come later do not need to know."""
        self._notice = notice
        self._wake()

    def close(self, end: TurnEnd | NotFound) -> None:
        """Nothing is appended after this. Readers get the end, or :class:`NotFound` raised where there is none."""
        self._end = end
        self._wake()

    def since(self, offset: int) -> str:
        """The text from ``offset`` on; costs what is new, not what is there."""
        first = bisect_right(self._ends, offset)
        if first == len(self._ends):
            return ""
        start = self._ends[first - 1] if first else 0
        return "".join([self._pieces[first][offset - start :], *self._pieces[first + 1 :]])

    async def follow(self, offset: int) -> AsyncIterator[TurnEvent]:
        """Everything from ``offset`` on as it comes, :class:`TurnEnd` last.

        Raises:
            NotFound: at the end, where the reply was deleted.
        """
        progress: TurnProgress | None = None
        notice = self._notice
        while True:
            # Taken before looking, so that a change during a yield is not slept over.
            changed = self._changed
            if self._progress is not None and self._progress is not progress:
                progress = self._progress
                yield progress
            if self._notice is not None and self._notice is not notice:
                notice = self._notice
                yield notice
            text = self.since(offset)
            if text:
                offset += len(text)
                yield TurnText(text, offset)
            if self._end is not None and offset >= len(self):
                if isinstance(self._end, NotFound):
                    raise self._end
                yield self._end
                return
            await changed.wait()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
