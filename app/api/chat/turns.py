"""The chat's own API: send a message, follow its reply, stop it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated

import orjson
from fastapi import APIRouter, Header, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from app.api.chat.turn_events import Positions, TurnStream, reader_factory
from app.api.deps import Closing, Metrics, OpenStreamsDep, ServicesDep, UserId
from app.api.sse import EventStream
from app.domain.chat_settings import ChatSettings
from app.errors import InvalidInput
from app.turns.service import TurnRef

router = APIRouter(prefix="/api", tags=["turns"])

StreamId = Annotated[str, Field(min_length=1, max_length=100)]
LastEventId = Annotated[str | None, Header(description="Sent by the browser when it reconnects; beats the offset.")]


class StartTurn(BaseModel):
    """A message to send. The browser sends ids and text; the database holds the rest."""

    model_config = ConfigDict(extra="forbid")

    text: str = Field(description="What the person wrote.")
    conversation_id: str | None = Field(None, description="Where to send it; none starts a conversation.")
    parent_id: str | None = Field(None, description="The message it answers; none is the conversation's last.")
    tip_id: str | None = Field(
        None,
        description="The last message that the client shows. Where the conversation has gone on elsewhere, the message "
        "is refused: it would follow what the person has not seen.",
    )
    request_id: str | None = Field(
        None,
        min_length=1,
        max_length=100,
        description="Any id of the client's own. Sent again with it, because the answer was lost, a message is not "
        "sent twice: the answer is that of the first time.",
    )
    settings: ChatSettings | None = Field(None, description="Saved on the conversation; none uses its own.")
    temporary: bool = Field(
        False, description="Begin a conversation that is kept in memory only and ends with the server, at the latest."
    )
    stream_id: StreamId | None = Field(
        None,
        description="Of an event stream that is open (`stream_id` of `GET /api/events`): the reply is told there from "
        "its first word, without another request. Whether it is, the answer's `in_stream` says.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedTurn(TurnRef):
    """A turn that was started, and where its reply is told."""

    in_stream: bool  #: in the stream that was asked for; where not, ask for its events


@router.post("/turns", status_code=201, response_model=StartedTurn)
async def start_turn(turn: StartTurn, user_id: UserId, services: ServicesDep, open_streams: OpenStreamsDep) -> Response:
    """Save a message and begin its reply. When this answers 201, the message is on disk."""
    if turn.conversation_id is not None:
        chats = await services.chats_with(turn.conversation_id)
    else:
        chats = await services.temporary.begin(user_id) if turn.temporary else services.chats
    ref = await chats.turns.start(
        user_id,
        text=turn.text,
        conversation_id=turn.conversation_id,
        parent_id=turn.parent_id,
        tip_id=turn.tip_id,
        settings=turn.settings,
        request_id=turn.request_id,
    )
    stream = open_streams.find(user_id, turn.stream_id) if turn.stream_id is not None else None
    told = stream is not None and stream.add(ref.turn_id, 0, reader_factory(chats.turns, user_id, ref.turn_id, 0))
    # Written out here: FastAPI would check once more what was made a line above.
    started = StartedTurn(**asdict(ref), in_stream=told)
    return Response(orjson.dumps(started), status_code=201, media_type="application/json")


@router.post("/turns/{turn_id}/stop", status_code=204)
async def stop_turn(turn_id: str, user_id: UserId, services: ServicesDep) -> None:
    """Stop a reply; what was written so far stays. Stopping twice, or too late, is no error."""
    await (await services.chats_with(turn_id)).turns.stop(user_id, turn_id)


@router.get("/turns/{turn_id}/events", status_code=200, response_class=EventStream)
async def turn_events(
    turn_id: str,
    user_id: UserId,
    services: ServicesDep,
    closing: Closing,
    metrics: Metrics,
    offset: Annotated[int, Query(ge=0, description="What the client already has; 0 is from the start.")] = 0,
    last_event_id: LastEventId = None,
) -> EventStream:
    """Follow one reply as server-sent events, from any point, also after it has ended."""
    start = Positions.parse_offset(last_event_id) if last_event_id else offset
    turns = (await services.chats_with(turn_id)).turns
    await turns.snapshot(user_id, turn_id)  # there is one for this user, or this is refused before there is a stream
    stream = TurnStream(metrics, names_turns=False)
    stream.add(turn_id, start, reader_factory(turns, user_id, turn_id, start))
    return EventStream(stream.events(), closing=closing)


@router.get("/events", status_code=200, response_class=EventStream)
async def many_turn_events(
    user_id: UserId,
    services: ServicesDep,
    closing: Closing,
    metrics: Metrics,
    open_streams: OpenStreamsDep,
    turn: Annotated[list[str] | None, Query(description="turn_id:offset, once per reply to follow.")] = None,
    stream_id: Annotated[
        StreamId | None,
        Query(
            description="Any id of the client's own. The stream then stays open for as long as the client does, and "
            "messages sent with this id are answered in it."
        ),
    ] = None,
    last_event_id: LastEventId = None,
) -> EventStream:
    """Follow several replies in one stream: a browser allows few connections, and all its tabs share this one."""
    asked, seen = turn or [], last_event_id.split(",") if last_event_id else []
    if stream_id is not None:  # what was added to it is not in its address
        positions = Positions.parse([*asked, *seen])
    elif asked:
        positions = Positions.parse(asked).advanced_to(Positions.parse(seen))
    else:
        raise InvalidInput(
            "There is nothing to follow. Name turns (turn=ID:OFFSET) or, for those to come, a stream_id."
        )
    stream = TurnStream(metrics, stays_open=stream_id is not None)
    for turn_id, offset in positions.offsets.items():
        turns = (await services.chats_with(turn_id)).turns
        stream.add(turn_id, offset, reader_factory(turns, user_id, turn_id, offset))
    while_open = open_streams.register(user_id, stream_id, stream) if stream_id is not None else None
    return EventStream(stream.events(while_open), closing=closing)
