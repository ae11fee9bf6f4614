"""Chat API: sends a message, streams its reply, stops it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated

import orjson
from fastapi import APIRouter, Header, Query, Response
from pydantic import Field

from app.api.chat.turn_events import Position, Positions, TurnStream, reader_factory
from app.api.deps import Closing, Metrics, OpenStreamsDep, ServicesDep, UserId
from app.api.request_model import RequestModel
from app.api.sse import EventStream
from app.domain.chat_settings import ChatSettings
from app.errors import InvalidInput
from app.services.container import Services
from app.turns.service import TurnRef, Turns

router = APIRouter(prefix="/api", tags=["turns"])

StreamId = Annotated[str, Field(min_length=1, max_length=100)]
LastEventId = Annotated[str | None, Header(description="Sent by the browser when it reconnects; overrides the offset.")]

Collections = Annotated[
    list[Annotated[str, Field(max_length=100)]] | None,
    Field(
        max_length=100,
        description="Ids of the collections of documents that this conversation's replies rest on from now on; empty: "
        "none. Default: those of its settings.",
    ),
]

START = Position(0)


class StartTurn(RequestModel):
    """A message to send. The client sends ids and text; the history comes from the database."""

    text: str = Field(description="The user's message.")
    conversation_id: str | None = Field(None, description="The conversation; default: a new one.")
    parent_id: str | None = Field(None, description="The message it follows; default: the conversation's last one.")
    tip_id: str | None = Field(
        None,
        description="The last message that the client shows. If the conversation has continued elsewhere, the message "
        "is refused, since it would follow messages that the user has not seen.",
    )
    request_id: str | None = Field(
        None,
        min_length=1,
        max_length=100,
        description="Idempotency key, any id the client chooses. A request that is repeated with it, because the "
        "response was lost, gets the first response instead of sending the message twice.",
    )
    settings: ChatSettings | None = Field(None, description="Saved on the conversation; default: its current ones.")
    collections: Collections = None
    temporary: bool = Field(
        False, description="Start a conversation that is only kept in memory, and ends with the server at the latest."
    )
    stream_id: StreamId | None = Field(
        None,
        description="Id of an open event stream (`stream_id` of `GET /api/events`): the reply is streamed there from "
        "its start, without another request. The response's `in_stream` says whether it is.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedTurn(TurnRef):
    """A turn that was started, and where its reply is streamed."""

    in_stream: bool  #: in the stream that the request named; if False, request the turn's events


@router.post("/turns", status_code=201, response_model=StartedTurn)
async def start_turn(turn: StartTurn, user_id: UserId, services: ServicesDep, open_streams: OpenStreamsDep) -> Response:
    """Saves a message and starts its reply. With the response 201, the message is on disk."""
    turns, ref = await begin_turn(services, user_id, turn)
    stream = open_streams.find(user_id, turn.stream_id) if turn.stream_id is not None else None
    reader = reader_factory(turns, user_id, ref.turn_id, START)
    in_stream = stream is not None and stream.add(ref.turn_id, START, reader)
    # Encoded here: FastAPI would validate the model once more.
    started = StartedTurn(**{field.name: getattr(ref, field.name) for field in fields(TurnRef)}, in_stream=in_stream)
    return Response(orjson.dumps(started), status_code=201, media_type="application/json")


async def begin_turn(services: Services, user_id: str, turn: StartTurn) -> tuple[Turns, TurnRef]:
    """Starts a turn in the conversation that it names, or in a new one; returns it with the turns that it is among.

    Raises what :meth:`Turns.start` raises.
    """
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
        collections=turn.collections,
        request_id=turn.request_id,
    )
    return chats.turns, ref


@router.post("/turns/{turn_id}/stop", status_code=204)
async def stop_turn(turn_id: str, user_id: UserId, services: ServicesDep) -> None:
    """Stops a reply; its text so far is kept. Stopping it twice, or too late, is not an error."""
    await (await services.chats_with(turn_id)).turns.stop(user_id, turn_id)


@router.get("/turns/{turn_id}/events", status_code=200, response_class=EventStream)
async def turn_events(
    turn_id: str,
    user_id: UserId,
    services: ServicesDep,
    closing: Closing,
    metrics: Metrics,
    offset: Annotated[int, Query(ge=0, description="Offset of the text that the client has; 0 for the start.")] = 0,
    reasoning_offset: Annotated[int, Query(ge=0, description="The same of its thinking.")] = 0,
    last_event_id: LastEventId = None,
) -> EventStream:
    """Streams one reply as server-sent events from any offset, also after it has ended."""
    start = Position.parse(last_event_id) if last_event_id else Position(offset, reasoning_offset)
    turns = (await services.chats_with(turn_id)).turns
    await turns.snapshot(user_id, turn_id)  # raises NotFound before the stream starts if it is not this user's
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
    turn: Annotated[
        list[str] | None,
        Query(description="turn_id:offset, or turn_id:offset.reasoning_offset, once per reply to stream."),
    ] = None,
    stream_id: Annotated[
        StreamId | None,
        Query(
            description="Any id the client chooses. The stream then stays open until the client disconnects, and "
            "replies to messages sent with this id are added to it."
        ),
    ] = None,
    last_event_id: LastEventId = None,
) -> EventStream:
    """Streams several replies together: browsers allow few connections, so all their tabs share one stream."""
    requested, seen = turn or [], last_event_id.split(",") if last_event_id else []
    if stream_id is not None:  # turns added to the stream are not in its URL
        positions = Positions.parse([*requested, *seen])
    elif requested:
        positions = Positions.parse(requested).advanced_to(Positions.parse(seen))
    else:
        raise InvalidInput("There is nothing to stream. Name turns (turn=ID:OFFSET), or a stream_id for those to come.")
    stream = TurnStream(metrics, stays_open=stream_id is not None)
    for turn_id, position in positions.offsets.items():
        turns = (await services.chats_with(turn_id)).turns
        stream.add(turn_id, position, reader_factory(turns, user_id, turn_id, position))
    while_open = open_streams.register(user_id, stream_id, stream) if stream_id is not None else None
    return EventStream(stream.events(while_open), closing=closing)
