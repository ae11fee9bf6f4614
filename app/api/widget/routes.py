"""Routes of the widget. The guard has found the visitor by the bearer token; none of them reads a cookie."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Request
from fastapi.responses import PlainTextResponse
from pydantic import Field

from app.api.deps import Closing, Metrics, ServicesDep, VisitorDep
from app.api.request_model import RequestModel
from app.api.sse import EventStream
from app.api.widget.events import WidgetStream, event_id
from app.api.widget.transcript import transcript
from app.api.widget.views import (
    WidgetCase,
    WidgetCaseAndMessage,
    WidgetCaseData,
    WidgetContact,
    WidgetInbox,
    WidgetMessage,
    WidgetSessionData,
    final_position,
    is_shown,
)
from app.auth.guard import NO_INBOXES
from app.auth.identity_tokens import MAX_EMAIL_CHARS, MAX_NAME_CHARS, is_email
from app.auth.visitors import VisitorIdentity, visitor_of
from app.domain.case_views import CaseMessage, CaseView, RatingView
from app.domain.cases import MAX_CLIENT_ID_CHARS, CaseStatus
from app.domain.text import clean_text, one_line
from app.errors import InvalidInput, NotFound
from app.services.widget import SessionWish, Widget

router = APIRouter(prefix="/api/widget", tags=["widget"])

MAX_FILES = 5
"""Files of one message."""
TRANSCRIPT_MESSAGES = 1000
"""The newest ones, which are in a transcript."""


async def _widget(services: ServicesDep) -> Widget:
    if services.widget is None:
        raise NotFound(NO_INBOXES)
    return services.widget


async def _contact(request: Request) -> VisitorIdentity:
    return visitor_of(request)


WidgetDep = Annotated[Widget, Depends(_widget)]
ContactDep = Annotated[VisitorIdentity, Depends(_contact)]


class NewSession(RequestModel):
    """A browser that opens the widget."""

    token: str | None = Field(None, max_length=200, description="Of an earlier session; one that is not valid is new.")
    identity: str | None = Field(
        None, max_length=8192, description="A JSON Web Token by which the website says who its customer is."
    )
    language: str | None = Field(None, max_length=100, description="The visitor's language, such as de-AT.")
    time_zone: str | None = Field(None, max_length=100, description="The visitor's time zone, such as Europe/Vienna.")


class NewMessage(RequestModel):
    """A message of a visitor."""

    text: str = Field("", description="The words; a message with files needs none.")
    client_id: str = Field(
        min_length=1, max_length=MAX_CLIENT_ID_CHARS, description="The client's own id: sent again, it stores nothing."
    )
    attachments: list[str] = Field([], max_length=MAX_FILES, description="Ids of files that were sent before.")


class ReadMark(RequestModel):
    """What a visitor has seen."""

    message_id: str = Field(min_length=1, max_length=36, description="The last message that was shown.")


class NewRating(RequestModel):
    """A visitor's rating of the case."""

    score: int = Field(ge=1, le=5)
    comment: str = ""


class ContactChange(RequestModel):
    """What a visitor says of themselves."""

    name: str = Field("", max_length=MAX_NAME_CHARS)
    email: str = Field("", max_length=MAX_EMAIL_CHARS)


@router.post("/{inbox}/sessions")
async def start_session(inbox: str, wanted: NewSession, widget: WidgetDep, client: VisitorDep) -> WidgetSessionData:
    """Begins a visitor's session, or goes on with an earlier one."""
    wish = SessionWish(
        token=wanted.token, identity=wanted.identity, language=wanted.language, time_zone=wanted.time_zone
    )
    session = await widget.start(inbox, wish, client.address)
    contact = session.visitor.contact
    case = await widget.cases.contacts.current(contact.id) if not session.is_new else None
    messages = await widget.cases.contacts.messages(contact.id, case.id) if case is not None else []
    live = widget.live.get(case.id) if case is not None else None
    return WidgetSessionData(
        token=session.token,
        expires_at=session.visitor.expires_at,
        inbox=WidgetInbox.of(session.inbox),
        case=await _case_of(widget, contact.id, case) if case is not None else None,
        messages=[
            WidgetMessage.of(message, live.buffer if live is not None and live.message_id == message.id else None)
            for message in messages
            if is_shown(message)
        ],
        contact=WidgetContact.of(contact),
        last_event_id=event_id(case.id, final_position(messages)) if case is not None else None,
        identity_error=session.identity_error,
    )


@router.post("/messages")
async def write_message(
    written: NewMessage, widget: WidgetDep, visitor: ContactDep, client: VisitorDep
) -> WidgetCaseAndMessage:
    """Stores a message of the visitor. The same ``client_id`` is the same message, however often it is sent."""
    message, case = await widget.write(visitor, client.address, written.text, written.client_id, written.attachments)
    return WidgetCaseAndMessage(WidgetMessage.of(message), await _case_of(widget, visitor.contact_id, case))


@router.get("/events", status_code=200, response_class=EventStream)
async def follow(
    widget: WidgetDep,
    visitor: ContactDep,
    client: VisitorDep,
    closing: Closing,
    metrics: Metrics,
    last_event_id: Annotated[str | None, Header()] = None,
) -> EventStream:
    """Streams what happens in the visitor's case: `case`, `message`, `delta` and `typing`."""
    widget.check_stream(visitor, client.address)
    stream = WidgetStream(widget, visitor, last_event_id, metrics)

    async def counted() -> AsyncGenerator[bytes]:
        async with aclosing(stream.events()) as events:
            with widget.streaming(client.address):
                async for event in events:
                    yield event

    return EventStream(counted(), closing=closing)


@router.post("/hand-off")
async def ask_for_person(widget: WidgetDep, visitor: ContactDep, client: VisitorDep) -> WidgetCaseData:
    """Gives the visitor's case to people. This works at any time."""
    case = await widget.ask_for_person(visitor, client.address)
    return WidgetCaseData(await _case_of(widget, visitor.contact_id, case))


@router.post("/read", status_code=204)
async def mark_read(mark: ReadMark, widget: WidgetDep, visitor: ContactDep) -> None:
    """Says that the visitor has seen the messages up to one: the replies among them are not sent by e-mail."""
    await widget.read(visitor, mark.message_id)


@router.post("/rating")
async def rate(rating: NewRating, widget: WidgetDep, visitor: ContactDep) -> RatingView:
    """Rates the visitor's case, or changes the rating."""
    return await widget.rate(visitor, rating.score, rating.comment)


@router.put("/contact")
async def edit_contact(change: ContactChange, widget: WidgetDep, visitor: ContactDep) -> WidgetContact:
    """Stores the visitor's name and e-mail address, for a late answer."""
    name, email = one_line(clean_text(change.name)), clean_text(change.email).strip()
    if email and not is_email(email):
        raise InvalidInput("This is not an e-mail address. Write one such as name@example.com.")
    return WidgetContact.of(await widget.edit_contact(visitor, name, email))


@router.get("/transcript", response_class=PlainTextResponse)
async def read_transcript(widget: WidgetDep, visitor: ContactDep) -> PlainTextResponse:
    """The visitor's talk as a text."""
    widget.check_rate(visitor)
    inbox, contact = await widget.inbox(visitor), await widget.contact(visitor)
    case = await widget.cases.contacts.current(visitor.contact_id)
    messages: list[CaseMessage] = []
    if case is not None:
        messages = await widget.cases.contacts.messages(visitor.contact_id, case.id, limit=TRANSCRIPT_MESSAGES)
    disposition = 'attachment; filename="transcript.txt"'
    return PlainTextResponse(transcript(inbox, contact, messages), headers={"Content-Disposition": disposition})


async def _case_of(widget: Widget, contact_id: str, case: CaseView) -> WidgetCase:
    inbox = await widget.cases.inboxes.view(case.inbox_id)
    if inbox is None:
        raise NotFound("This chat was removed from the website.")
    is_rated = False
    if case.status is CaseStatus.RESOLVED:  # only then is a rating asked for
        is_rated = await widget.cases.contacts.rating(contact_id, case.id) is not None
    return WidgetCase.of(case, inbox, is_rated=is_rated)
