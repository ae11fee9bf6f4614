"""Server-sent events of one turn, or of several in one stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from app.api.request_middleware import HttpMetrics
from app.api.sse import sse_event
from app.errors import InvalidInput, NotFound, StorageUnavailable
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
from app.turns.readers import ChangeCallback, TurnReader
from app.turns.service import Turns

MAX_TURNS_PER_STREAM = 100
"""Maximum turns in one stream; more are refused."""
SSE_COALESCE_SECONDS = 0.02
"""Interval between two events of a stream. Text that arrives in its first three quarters is held back and sent together
at its end: each event costs the server and the page time, and users do not see the difference. The first text of a
reply, and its end, are not held back.

The in-process engine holds deltas too, the longer the more readers it has (``engine.scheduling.coalescing``): that
saves its crossings to the event loop and its calls of C++, which this cannot. This limits the events of a tab where the
engine holds little or nothing: with few readers, and behind a remote engine. ``benchmarks.event_streams``, two cores:
200 tokens/s for each of 8 tabs are 47 events/s for a tab instead of 199, at half the CPU time. Where the engine holds
longest, the two do not add up, since the interval counts from the last event: 60 tabs with 100 tokens/s get 33 events/s
with or without this, 1.5 ms after the delivery."""


class Position(NamedTuple):
    """A client's read position in a turn: written ``12``, or ``12.340`` with 340 characters of thinking read."""

    offset: int  #: of the text
    reasoning_offset: int = 0

    @classmethod
    def parse(cls, text: str) -> Position:
        """Parses a position as sent in an event's id. Raises ``InvalidInput``."""
        offset, dot, reasoning_offset = text.partition(".")
        if not (_is_offset(offset) and (not dot or _is_offset(reasoning_offset))):
            raise InvalidInput(f"'{text[:80]}' is not an offset. Send the offset of an event, or 0.")
        return cls(int(offset), int(reasoning_offset or 0))

    def __str__(self) -> str:
        return f"{self.offset}.{self.reasoning_offset}" if self.reasoning_offset else str(self.offset)


def _is_offset(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 15


@dataclass(frozen=True, slots=True)
class Positions:
    """A client's read position in each turn it follows, by turn id."""

    offsets: Mapping[str, Position]

    @classmethod
    def parse(cls, texts: Iterable[str]) -> Positions:
        """Parses ``turn_id:offset`` items.

        Raises:
            InvalidInput: an item is malformed, or there are more than :data:`MAX_TURNS_PER_STREAM`.
        """
        offsets: dict[str, Position] = {}
        for text in texts:
            turn_id, colon, offset = text.rpartition(":")
            if not colon or not turn_id:
                raise InvalidInput(f"'{text[:80]}' is not a turn and an offset, such as 0198c...:0.")
            offsets[turn_id] = Position.parse(offset)
        if len(offsets) > MAX_TURNS_PER_STREAM:
            raise InvalidInput(f"A stream can follow at most {MAX_TURNS_PER_STREAM} turns (got {len(offsets)}).")
        return cls(offsets)

    def advanced_to(self, seen: Positions) -> Positions:
        """Returns the same turns with the offsets of ``seen`` where it has them."""
        return Positions({turn: seen.offsets.get(turn, offset) for turn, offset in self.offsets.items()})

    def __str__(self) -> str:
        return ",".join([f"{turn}:{offset}" for turn, offset in self.offsets.items()])


ReaderFactory = Callable[[ChangeCallback], TurnReader]
"""Opens a turn's reader, with the callback to call when the turn has new events."""


def reader_factory(turns: Turns, user_id: str, turn_id: str, position: Position) -> ReaderFactory:
    """Returns a factory of readers of the turn, from ``position`` on."""
    return lambda changed: turns.reader(user_id, turn_id, position.offset, changed, position.reasoning_offset)


class TurnStream:
    """Streams the new events of its turns, all that are new in one chunk.

    Events do not queue up for a slow client: the next chunk holds everything that has arrived meanwhile.

    Args:
        names_turns: each event names its turn, and its id holds the positions of all turns; otherwise the id is the
            position in the only turn.
        stays_open: the stream stays open for turns to be added when all its turns have ended.
    """

    def __init__(self, metrics: HttpMetrics, *, names_turns: bool = True, stays_open: bool = False) -> None:
        self._metrics = metrics
        self._names_turns = names_turns
        self._stays_open = stays_open
        self._coalescer = _Coalescer()
        self._to_open: dict[str, ReaderFactory] = {}
        self._readers: dict[str, TurnReader] = {}
        self._reached: dict[str, Position] = {}

    def add(self, turn_id: str, position: Position, open_reader: ReaderFactory) -> bool:
        """Adds a turn. Returns False if there are too many, or the turn is in the stream already."""
        if len(self._readers) + len(self._to_open) >= MAX_TURNS_PER_STREAM or turn_id in self._reached:
            return False
        self._reached[turn_id] = position
        self._to_open[turn_id] = open_reader
        self._coalescer.changed(True)
        return True

    def finish(self) -> None:
        """Lets the stream end with its current turns."""
        self._stays_open = False
        self._coalescer.changed(True)

    async def events(self, while_open: AbstractContextManager[None] | None = None) -> AsyncGenerator[bytes]:
        """Yields the encoded events. Can be iterated once; ``while_open`` is entered meanwhile."""
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
                            pieces += self._encode_new_events(turn_id, reader, sampled_at)
                        except StorageUnavailable:
                            return  # the client reconnects by itself and resumes at its position
                        if reader.ended:
                            await self._readers.pop(turn_id).close()
                            if self._stays_open:  # a client that reconnects only needs the turns in progress
                                del self._reached[turn_id]
                    if pieces:
                        yield b"".join(pieces)
                        self._coalescer.mark_sent()
                        self._metrics.observe_delivery(sampled_at)
            finally:
                self._coalescer.cancel_timer()
                for reader in self._readers.values():
                    await reader.close()

    def _encode_new_events(self, turn_id: str, reader: TurnReader, sampled_at: list[float]) -> list[bytes]:
        """Encodes a turn's new events; appends the sampling times of their oldest tokens to ``sampled_at``."""
        try:
            events = reader.take()
        except NotFound as error:  # the turn was deleted meanwhile
            return [self._encode(turn_id, "gone", {"code": error.code, "message": error.message})]
        pieces = []
        for event in events:
            name, data = _name_and_data(event)
            if isinstance(event, TurnText | TurnEnd):
                self._reached[turn_id] = self._reached[turn_id]._replace(offset=event.offset)
            elif isinstance(event, TurnReasoning):
                self._reached[turn_id] = self._reached[turn_id]._replace(reasoning_offset=event.offset)
            pieces.append(self._encode(turn_id, name, data))
            if isinstance(event, TurnText | TurnReasoning) and event.sampled_at is not None:
                sampled_at.append(event.sampled_at)
        return pieces

    def _encode(self, turn_id: str, name: str, data: dict[str, Any]) -> bytes:
        if not self._names_turns:
            return sse_event(data, event=name, id=str(self._reached[turn_id]))
        return sse_event({"turn_id": turn_id, **data}, event=name, id=str(Positions(self._reached)))


class OpenStreams:
    """This process's streams that stay open, by user and by the client's stream id."""

    def __init__(self) -> None:
        self._streams: dict[tuple[str, str], TurnStream] = {}

    @contextmanager
    def register(self, user_id: str, stream_id: str, stream: TurnStream) -> Iterator[None]:
        """Registers the stream for :meth:`find` until the block ends. Of two with the same id, the newer one counts."""
        key = user_id, stream_id
        self._streams[key] = stream
        try:
            yield
        finally:
            if self._streams.get(key) is stream:
                del self._streams[key]

    def find(self, user_id: str, stream_id: str) -> TurnStream | None:
        return self._streams.get((user_id, stream_id))

    def finish(self) -> None:
        """Lets all streams end, at shutdown."""
        for stream in self._streams.values():
            stream.finish()


class _Coalescer:
    """Decides when a stream sends: text at most every :data:`SSE_COALESCE_SECONDS`, the end of a turn at once."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._is_due = False
        self._waiting: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._sent_at = -SSE_COALESCE_SECONDS

    def changed(self, ended: bool) -> None:
        """Reports a new event. Called for every token."""
        if self._is_due:
            return
        early = 0.0 if ended else self._sent_at + SSE_COALESCE_SECONDS - self._loop.time()
        if early <= 0 or (self._timer is None and early <= SSE_COALESCE_SECONDS / 4):
            # With 20 to 33 readers the engine delivers about once in an interval: waiting for the rest of it, or almost
            # for the next delivery, would save no event.
            self._wake_up()
        elif self._timer is None:
            self._timer = self._loop.call_later(early, self._wake_up)

    async def wait_until_due(self) -> None:
        """Waits until it is time to send. One waiter at a time."""
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
        """Reports that a chunk was sent."""
        self._sent_at = self._loop.time()

    def cancel_timer(self) -> None:
        """Cancels a pending wake-up."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _name_and_data(event: TurnEvent) -> tuple[str, dict[str, Any]]:
    """Returns the name and the data of an event."""
    match event:
        case TurnText():
            return "text", {"text": event.text, "offset": event.offset}
        case TurnReasoning():
            seconds = None if event.seconds is None else round(event.seconds, 1)
            return "reasoning", {"text": event.text, "offset": event.offset, "seconds": seconds, "ended": event.ended}
        case TurnToolUse():
            return "tool_use", _fields(event)
        case TurnCitations():
            return "citations", _fields(event)
        case TurnProgress():
            return "progress", _fields(event)
        case TurnNotice():
            return "notice", _fields(event)
        case TurnEnd():
            return "end", _fields(event)


def _fields(event: TurnToolUse | TurnCitations | TurnProgress | TurnNotice | TurnEnd) -> dict[str, Any]:
    """Returns the fields as a shallow dict: orjson encodes nested dataclasses itself."""
    return {field.name: getattr(event, field.name) for field in fields(event)}
