"""A turn's events as server-sent events: one turn by itself, or several in one stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from prometheus_client import Gauge

from app.api.sse import close, sse_event
from app.errors import AppError, InvalidInput, NotFound, StorageUnavailable
from app.turns.events import TurnEnd, TurnEvent, TurnNotice, TurnProgress, TurnText
from app.turns.service import Turns

MAX_TURNS_PER_STREAM = 100


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
        return ",".join(f"{turn}:{offset}" for turn, offset in self.offsets.items())


async def follow(turns: Turns, user_id: str, turn_id: str, offset: int, open_streams: Gauge) -> AsyncGenerator[bytes]:
    """One turn's events on the wire, each with the offset it reaches as its id.

    Raises (here, before there is a stream):
        NotFound: there is no such turn for this user.
    """
    await turns.snapshot(user_id, turn_id)

    async def stream() -> AsyncGenerator[bytes]:
        events = turns.events(user_id, turn_id, offset)
        reached = offset
        with open_streams.track_inprogress():
            try:
                async for event in events:
                    name, data = _wire(event)
                    reached = _offset(event, reached)
                    yield sse_event(data, event=name, id=str(reached))
            except NotFound as error:  # deleted since
                yield sse_event(_problem(error), event="gone", id=str(reached))
            except StorageUnavailable:
                return  # the client comes back by itself and goes on where it was
            finally:
                await close(events)

    return stream()


async def follow_many(
    turns: Mapping[str, Turns], user_id: str, positions: Positions, open_streams: Gauge
) -> AsyncGenerator[bytes]:
    """Several turns' events on the wire; each names its turn, and its id holds where all of them stand.

    ``turns`` says of each where it is.

    A turn that does not exist (deleted meanwhile, say) sends one ``gone`` event and disturbs no other.
    """
    reached = dict(positions.offsets)
    readers = {turn: turns[turn].events(user_id, turn, offset) for turn, offset in reached.items()}
    # One event is asked for per turn and the next only after it was sent, so a slow client makes
    # nothing pile up: its next event brings everything new at once.
    asked = {asyncio.create_task(_next(reader)): turn for turn, reader in readers.items()}
    with open_streams.track_inprogress():
        try:
            while asked:
                done, _ = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    turn = asked.pop(task)
                    try:
                        event = task.result()
                    except NotFound as error:
                        name, data = "gone", _problem(error)
                    except StorageUnavailable:
                        return  # the client comes back by itself and goes on where it was
                    else:
                        if event is None:
                            continue
                        name, data = _wire(event)
                        reached[turn] = _offset(event, reached[turn])
                        asked[asyncio.create_task(_next(readers[turn]))] = turn
                    yield sse_event({"turn_id": turn, **data}, event=name, id=str(Positions(reached)))
        finally:
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
            for reader in readers.values():
                await close(reader)


async def _next(events: AsyncIterator[TurnEvent]) -> TurnEvent | None:
    return await anext(events, None)


def _problem(error: AppError) -> dict[str, Any]:
    return {"code": error.code, "message": error.message}


def _offset(event: TurnEvent, before: int) -> int:
    return event.offset if isinstance(event, TurnText | TurnEnd) else before


def _wire(event: TurnEvent) -> tuple[str, dict[str, Any]]:
    """The name and the data of an event."""
    data = asdict(event)
    match event:
        case TurnText():
            return "text", data
        case TurnProgress():
            return "progress", data
        case TurnNotice():
            return "notice", data
        case TurnEnd():
            return "end", data
