"""Chat API: drafts of replies to customers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import asdict

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from pydantic import Field

from app.api.chat.turns import Collections
from app.api.client_left import CLIENT_LEFT, unless_client_leaves
from app.api.deps import Closing, ServicesDep, UserId
from app.api.request_model import RequestModel
from app.api.sse import EventStream, close, sse_event
from app.domain.reply_drafts import DraftChange, DraftUse
from app.errors import AppError, EngineUnavailable
from app.turns.drafts import Draft, DraftEnd, DraftEvent, DraftRequest, DraftStarted

router = APIRouter(prefix="/api/conversations/{conversation_id}", tags=["drafts"])

_STOPPING = EngineUnavailable("The server is shutting down. The draft so far was kept.")


class DraftToWrite(RequestModel):
    """What a draft is written from."""

    text: str = Field(description="The customer's message.")
    notes: str = Field("", description="The agent's notes on the case.")
    collections: Collections = None
    draft: str = Field("", description="The draft as it is now, if it is to be changed.")
    change: DraftChange | None = Field(None, description="How to change the draft; default: write a new one.")
    stream: bool = Field(
        False,
        description="Send the draft as server-sent events while it is written: `draft` with its id and what it may "
        "cite, `text`, and at the end `end` with the whole draft, or `error`. Disconnecting stops it.",
    )

    def as_request(self) -> DraftRequest:
        """The same, for the writer of drafts."""
        return DraftRequest(text=self.text, notes=self.notes, draft=self.draft, change=self.change)


class DraftInUse(RequestModel):
    """What a user made of a draft."""

    text: str = Field(description="The draft as the user changed it, with its citations.")
    used_as: DraftUse = Field(description="What the user did with it.")


@router.post("/draft", response_model=Draft)
async def write_draft(
    conversation_id: str,
    wanted: DraftToWrite,
    user_id: UserId,
    services: ServicesDep,
    request: Request,
    closing: Closing,
) -> Response:
    """Writes a draft of a reply to a customer, with this conversation's settings. It is none of its messages."""
    chats = await services.chats_with(conversation_id)
    settings = await chats.conversations.settings_of(user_id, conversation_id)
    if wanted.collections is not None:
        settings = settings.model_copy(update={"collections": tuple(wanted.collections)})
    source = wanted.as_request()
    return await draft_response(
        chats.drafts.write(user_id, conversation_id, settings, source), wanted, request, closing
    )


async def draft_response(
    events: AsyncGenerator[DraftEvent], wanted: DraftToWrite, request: Request, closing: asyncio.Event
) -> Response:
    """The draft that ``events`` write, or the events themselves, as ``wanted`` says."""
    streaming = False
    try:
        # What is refused is refused before the first event: waiting for it here gives it its own status.
        first = await unless_client_leaves(request, _next(events))
        if first is None:
            return Response(status_code=CLIENT_LEFT)
        if wanted.stream:
            streaming = True
            final = _error_event(_STOPPING)
            return EventStream(_encoded(first, events), closing=closing, final_event=final, source=events)
        draft = await unless_client_leaves(request, _whole(first, events))
        return Response(status_code=CLIENT_LEFT) if draft is None else JSONResponse(asdict(draft))
    finally:
        if not streaming:
            await close(events)


@router.put("/drafts/{draft_id}", status_code=204)
async def use_draft(
    conversation_id: str, draft_id: str, used: DraftInUse, user_id: UserId, services: ServicesDep
) -> None:
    """Keeps what a user made of a draft and did with it, for a review. Of several uses, the last one is kept."""
    chats = await services.chats_with(conversation_id)
    await chats.drafts.use(user_id, conversation_id, draft_id, used.text, used.used_as)


async def _next(events: AsyncIterator[DraftEvent]) -> DraftEvent:
    return await anext(events)


async def _whole(event: DraftEvent, rest: AsyncIterator[DraftEvent]) -> Draft:
    while not isinstance(event, DraftEnd):
        event = await anext(rest)
    return event.draft


async def _encoded(first: DraftEvent, rest: AsyncGenerator[DraftEvent]) -> AsyncGenerator[bytes]:
    """Yields server-sent events; an error on the way is the last one."""
    try:
        yield _event(first)
        async for event in rest:
            yield _event(event)
    except AppError as error:
        yield _error_event(error)
    finally:
        await close(rest)


def _event(event: DraftEvent) -> bytes:
    if isinstance(event, DraftStarted):
        return sse_event(asdict(event), event="draft")
    if isinstance(event, DraftEnd):
        return sse_event(asdict(event.draft), event="end")
    return sse_event(asdict(event), event="text")


def _error_event(error: AppError) -> bytes:
    return sse_event({"status": error.status, "code": error.code, "message": error.message}, event="error")
