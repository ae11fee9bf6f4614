"""A turn's events as server-sent events: one turn by itself, or several in one stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from app.api.observe import HttpMetrics
from app.api.sse import sse_event
from app.errors import InvalidInput, NotFound, StorageUnavailable
from app.turns.events import TurnEnd, TurnEvent, TurnNotice, TurnProgress, TurnText
from app.turns.readers import Changed, TurnReader
from app.turns.service import Turns

MAX_TURNS_PER_STREAM = 100
COMPANY_SECONDS = 0.03
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
        return ",".join(f"{turn}:{offset}" for turn, offset in self.offsets.items())


async def follow(turns: Turns, user_id: str, turn_id: str, offset: int, metrics: HttpMetrics) -> AsyncGenerator[bytes]:
    """One turn's events on the wire, each with the offset it reaches as its id.

    Raises (here, before there is a stream):
        NotFound: there is no such turn for this user.
    """
    await turns.snapshot(user_id, turn_id)

    def wire(turn_id: str, name: str, data: dict[str, Any], reached: Mapping[str, int]) -> bytes:
        return sse_event(data, event=name, id=str(reached[turn_id]))

    return _events(
        {turn_id: lambda changed: turns.reader(user_id, turn_id, offset, changed)}, {turn_id: offset}, wire, metrics
    )


def follow_many(
    turns: Mapping[str, Turns], user_id: str, positions: Positions, metrics: HttpMetrics
) -> AsyncGenerator[bytes]:
    """Several turns' events on the wire; each names its turn, and its id holds where all of them stand.

    ``turns`` says of each where it is.

    A turn that does not exist (deleted meanwhile, say) sends one ``gone`` event and disturbs no other.
    """

    def wire(turn_id: str, name: str, data: dict[str, Any], reached: Mapping[str, int]) -> bytes:
        return sse_event({"turn_id": turn_id, **data}, event=name, id=str(Positions(reached)))

    def opening(turn_id: str, offset: int) -> Callable[[Changed], TurnReader]:
        return lambda changed: turns[turn_id].reader(user_id, turn_id, offset, changed)

    openings = {turn_id: opening(turn_id, offset) for turn_id, offset in positions.offsets.items()}
    return _events(openings, positions.offsets, wire, metrics)


async def _events(
    openings: Mapping[str, Callable[[Changed], TurnReader]],
    offsets: Mapping[str, int],
    wire: Callable[[str, str, dict[str, Any], Mapping[str, int]], bytes],
    metrics: HttpMetrics,
) -> AsyncGenerator[bytes]:
    """What is new of all turns, in one piece, whenever something is.

    A slow client makes nothing pile up: the next piece brings everything that has come meanwhile.
    """
    reached = dict(offsets)
    company = _Company()
    readers = {turn_id: opening(company.changed) for turn_id, opening in openings.items()}
    with metrics.event_streams.track_inprogress():
        try:
            company.changed(True)  # what there is already
            while readers:
                await company.gathered()
                pieces: list[bytes] = []
                sampled_at: list[float] = []
                for turn_id, reader in list(readers.items()):
                    try:
                        events = reader.take()
                    except NotFound as error:  # deleted since
                        problem = {"code": error.code, "message": error.message}
                        pieces.append(wire(turn_id, "gone", problem, reached))
                    except StorageUnavailable:
                        return  # the client comes back by itself and goes on where it was
                    else:
                        for event in events:
                            name, data = _named(event)
                            reached[turn_id] = data.get("offset", reached[turn_id])
                            pieces.append(wire(turn_id, name, data, reached))
                            if isinstance(event, TurnText) and event.sampled_at is not None:
                                sampled_at.append(event.sampled_at)
                    if reader.ended:
                        await readers.pop(turn_id).close()
                if pieces:
                    yield b"".join(pieces)
                    company.parted()
                    metrics.delivered(sampled_at)
        finally:
            company.dissolve()
            for reader in readers.values():
                await reader.close()


class _Company:
    """Tells one stream when to take what is new: text at most every :data:`COMPANY_SECONDS`, an end at once."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._now = asyncio.Event()
        self._soon: asyncio.TimerHandle | None = None
        self._parted = -COMPANY_SECONDS

    def changed(self, ended: bool) -> None:
        """There is something new; it is called for every token."""
        if self._now.is_set():
            return
        early = 0.0 if ended else self._parted + COMPANY_SECONDS - self._loop.time()
        if early <= 0:
            self._now.set()
        elif self._soon is None:
            self._soon = self._loop.call_later(early, self._now.set)

    async def gathered(self) -> None:
        """Wait until it is time to take what is new."""
        await self._now.wait()
        self.dissolve()
        self._now.clear()

    def parted(self) -> None:
        """What was taken has been sent."""
        self._parted = self._loop.time()

    def dissolve(self) -> None:
        """Wait for nothing more."""
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None


def _named(event: TurnEvent) -> tuple[str, dict[str, Any]]:
    """The name and the data of an event."""
    match event:
        case TurnText():
            return "text", {"text": event.text, "offset": event.offset}
        case TurnProgress():
            return "progress", asdict(event)
        case TurnNotice():
            return "notice", asdict(event)
        case TurnEnd():
            return "end", asdict(event)
