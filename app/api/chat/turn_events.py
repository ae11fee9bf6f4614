"""A turn's events as server-sent events: one turn by itself, or several in one stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, fields
from typing import Any

from app.api.request_middleware import HttpMetrics
from app.api.sse import sse_event
from app.errors import InvalidInput, NotFound, StorageUnavailable
from app.turns.events import TurnEnd, TurnEvent, TurnNotice, TurnProgress, TurnText
from app.turns.readers import ChangeCallback, TurnReader
from app.turns.service import Turns

MAX_TURNS_PER_STREAM = 100
SSE_COALESCE_SECONDS = 0.02
"""So much lies between two events at least, and text that comes earlier waits for more: each event has its cost, for
the server and for the page, and an eye does not see the difference. The first words of a reply, and its end, wait for
nothing."""


@dataclass(frozen=True, slots=True)
class Positions:
    """How far a client has read each turn it follows: turn id → offset."""

    offsets: Mapping[str, int]

    @classmethod
    def parse(cls, texts: Iterable[str]) -> Positions:
        """Read ``turn_id:offset`` items.

        Raises:
            InvalidInput: an item is malformed, or there are too many.
        """
        offsets: dict[str, int] = {}
        for text in texts:
            turn_id, colon, offset = text.rpartition(":")
            if not colon or not turn_id:
                raise InvalidInput(f"'{text[:80]}' is not a turn and an offset, such as 0198c...:0.")
            offsets[turn_id] = cls.parse_offset(offset)
        if len(offsets) > MAX_TURNS_PER_STREAM:
            raise InvalidInput(f"One stream follows at most {MAX_TURNS_PER_STREAM} turns; {len(offsets)} were asked.")
        return cls(offsets)

    @staticmethod
    def parse_offset(text: str) -> int:
        """Read an offset as it was handed out in an event's id."""
        if not (text.isascii() and text.isdecimal() and len(text) <= 15):
            raise InvalidInput(f"'{text[:80]}' is not an offset; send one that an event carried, or 0.")
        return int(text)

    def advanced_to(self, seen: Positions) -> Positions:
        """These turns, each at the offset ``seen`` knows for it."""
        return Positions({turn: seen.offsets.get(turn, offset) for turn, offset in self.offsets.items()})

    def __str__(self) -> str:
        return ",".join([f"{turn}:{offset}" for turn, offset in self.offsets.items()])


ReaderFactory = Callable[[ChangeCallback], TurnReader]
"""Begins to read a turn; gets what is to be called when there is something new."""


def reader_factory(turns: Turns, user_id: str, turn_id: str, offset: int) -> ReaderFactory:
    """How a turn is read from ``offset`` on."""
    return lambda changed: turns.reader(user_id, turn_id, offset, changed)


class TurnStream:
    """What is new of its turns, in one piece, whenever something is.

    A slow client makes nothing pile up: the next piece brings everything that has come meanwhile.

    Args:
        names_turns: each event names its turn, and its id holds where all turns stand; else the id is the offset of
            the only one.
        stays_open: for turns that may be added, also when all the others have ended.
    """

    def __init__(self, metrics: HttpMetrics, *, names_turns: bool = True, stays_open: bool = False) -> None:
        self._metrics = metrics
        self._names_turns = names_turns
        self._stays_open = stays_open
        self._coalescer = _Coalescer()
        self._to_open: dict[str, ReaderFactory] = {}
        self._readers: dict[str, TurnReader] = {}
        self._reached: dict[str, int] = {}

    def add(self, turn_id: str, offset: int, open_reader: ReaderFactory) -> bool:
        """Tell of one more turn. False where there are too many, or it is told of already."""
        if len(self._readers) + len(self._to_open) >= MAX_TURNS_PER_STREAM or turn_id in self._reached:
            return False
        self._reached[turn_id] = offset
        self._to_open[turn_id] = open_reader
        self._coalescer.changed(True)
        return True

    def finish(self) -> None:
        """Stay open no longer than the turns that are told of."""
        self._stays_open = False
        self._coalescer.changed(True)

    async def events(self, while_open: AbstractContextManager[None] | None = None) -> AsyncGenerator[bytes]:
        """On the wire. To be iterated once; ``while_open`` is entered for as long."""
        with self._metrics.event_streams.track_inprogress(), while_open or nullcontext():
            try:
                while self._stays_open or self._readers or self._to_open:
                    await self._coalescer.wait_until_due()
                    for turn_id, open_reader in self._to_open.items():
                        self._readers[turn_id] = open_reader(self._coalescer.changed)
                    self._to_open.clear()
                    pieces: list[bytes] = []
                    sampled_at: list[float] = []
                    for turn_id, reader in list(self._readers.items()):
                        try:
                            pieces += self._new_of(turn_id, reader, sampled_at)
                        except StorageUnavailable:
                            return  # the client comes back by itself and goes on where it was
                        if reader.ended:
                            await self._readers.pop(turn_id).close()
                            if self._stays_open:  # who comes back asks for those that go on
                                del self._reached[turn_id]
                    if pieces:
                        yield b"".join(pieces)
                        self._coalescer.mark_sent()
                        self._metrics.observe_delivery(sampled_at)
            finally:
                self._coalescer.cancel_timer()
                for reader in self._readers.values():
                    await reader.close()

    def _new_of(self, turn_id: str, reader: TurnReader, sampled_at: list[float]) -> list[bytes]:
        """A turn's new events on the wire; adds to ``sampled_at`` when their oldest tokens were sampled."""
        try:
            events = reader.take()
        except NotFound as error:  # deleted since
            return [self._wire(turn_id, "gone", {"code": error.code, "message": error.message})]
        pieces = []
        for event in events:
            name, data = _named(event)
            self._reached[turn_id] = data.get("offset", self._reached[turn_id])
            pieces.append(self._wire(turn_id, name, data))
            if isinstance(event, TurnText) and event.sampled_at is not None:
                sampled_at.append(event.sampled_at)
        return pieces

    def _wire(self, turn_id: str, name: str, data: dict[str, Any]) -> bytes:
        if not self._names_turns:
            return sse_event(data, event=name, id=str(self._reached[turn_id]))
        return sse_event({"turn_id": turn_id, **data}, event=name, id=str(Positions(self._reached)))


class OpenStreams:
    """The streams of this process that stay open, by whose they are and by what their clients call them."""

    def __init__(self) -> None:
        self._streams: dict[tuple[str, str], TurnStream] = {}

    @contextmanager
    def register(self, user_id: str, stream_id: str, stream: TurnStream) -> Iterator[None]:
        """Meanwhile :meth:`find` finds the stream. Of two with one name it is the newer."""
        whose = user_id, stream_id
        self._streams[whose] = stream
        try:
            yield
        finally:
            if self._streams.get(whose) is stream:
                del self._streams[whose]

    def find(self, user_id: str, stream_id: str) -> TurnStream | None:
        return self._streams.get((user_id, stream_id))

    def finish(self) -> None:
        """Let them end: the server does."""
        for stream in self._streams.values():
            stream.finish()


class _Coalescer:
    """Tells one stream when to take what is new: text at most every :data:`SSE_COALESCE_SECONDS`, an end at once."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._is_due = False
        self._waiting: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._sent_at = -SSE_COALESCE_SECONDS

    def changed(self, ended: bool) -> None:
        """There is something new; it is called for every token."""
        if self._is_due:
            return
        early = 0.0 if ended else self._sent_at + SSE_COALESCE_SECONDS - self._loop.time()
        if early <= 0:
            self._wake_up()
        elif self._timer is None:
            self._timer = self._loop.call_later(early, self._wake_up)

    async def wait_until_due(self) -> None:
        """Wait until it is time to take what is new. For one at a time."""
        if not self._is_due:
            self._waiting = self._loop.create_future()
            await self._waiting
        self.cancel_timer()
        self._is_due = False

    def _wake_up(self) -> None:
        self._is_due = True
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def mark_sent(self) -> None:
        """What was taken has been sent."""
        self._sent_at = self._loop.time()

    def cancel_timer(self) -> None:
        """Wait for nothing more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _named(event: TurnEvent) -> tuple[str, dict[str, Any]]:
    """The name and the data of an event."""
    match event:
        case TurnText():
            return "text", {"text": event.text, "offset": event.offset}
        case TurnProgress():
            return "progress", _fields(event)
        case TurnNotice():
            return "notice", _fields(event)
        case TurnEnd():
            return "end", _fields(event)


def _fields(event: TurnProgress | TurnNotice | TurnEnd) -> dict[str, Any]:
    """What is inside stays an object: JSON is made of those too."""
    return {field.name: getattr(event, field.name) for field in fields(event)}
