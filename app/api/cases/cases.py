"""Cases API: the list, one case, and what agents do with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Response
from fastapi.responses import StreamingResponse
from pydantic import AwareDatetime, Field, StringConstraints

from app.api.cases.attachments import attachment_response
from app.api.cases.deps import CasesDep
from app.api.cases.streams import case_stream, list_stream
from app.api.cases.views import CaseAndMessage, CaseList, CaseMessageData, CaseRow, WholeCase
from app.api.deps import Closing, Metrics, ServicesDep, UserId
from app.api.request_model import RequestModel
from app.api.sse import EventStream
from app.cases.presence import PresentUser
from app.domain.case_views import CaseMessage, CaseView
from app.domain.cases import MAX_CLIENT_ID_CHARS, CasePriority, CaseStatus
from app.errors import InvalidInput
from app.services.container import Services
from app.store.cases.case_list import MAX_PAGE, CaseListView
from app.store.cases.received import NamedContact

router = APIRouter(prefix="/api/cases", tags=["cases"])

Epoch = Annotated[
    int | None, Field(ge=0, le=2**53, description="As the caller read it: refused with 409 if it has grown since.")
]
ContactLine = Annotated[str, StringConstraints(strip_whitespace=True, max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$")]
ClientId = Annotated[str, StringConstraints(min_length=1, max_length=MAX_CLIENT_ID_CHARS)]
Id = Annotated[str, StringConstraints(min_length=1, max_length=36)]


class Command(RequestModel):
    """A command without values of its own."""

    epoch: Epoch = None


class NewMessage(Command):
    text: str
    client_id: ClientId | None = Field(None, description="The client's own id: sending it again stores nothing.")


class NewReply(NewMessage):
    author: Literal["agent", "contact"] = Field(
        "agent", description="`contact`: what the contact wrote elsewhere, such as by e-mail; it needs a `client_id`."
    )


class NewContact(RequestModel):
    """A contact as a program knows it. What a website has proven of one stays as it is."""

    external_id: Annotated[
        str, StringConstraints(strip_whitespace=True, min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$")
    ] = Field(description="The program's own id of the contact: a contact is known by it.")
    name: ContactLine | None = None
    email: (
        Annotated[str, StringConstraints(max_length=320, pattern=r"^[^@\s\x00-\x1f\x7f]+@[^@\s\x00-\x1f\x7f]+$")] | None
    ) = None
    language: Annotated[str, StringConstraints(max_length=35, pattern=r"^[A-Za-z0-9-]+$")] | None = None


class NewCase(RequestModel):
    """A contact's message that another program received."""

    inbox_id: Id
    contact: NewContact
    text: str
    client_id: ClientId = Field(description="The program's own id of the message: sending it again stores nothing.")


class Assignment(Command):
    user_id: Id | None = Field(description="Null assigns the case to none.")


class Snooze(Command):
    until: AwareDatetime


class Merge(Command):
    into: Id = Field(description="Id of the case that it becomes a part of.")


class CaseChange(Command):
    """What to change; omitted fields stay."""

    priority: CasePriority | None = None
    tags: list[str] | None = None
    subject: str | None = None


class Sign(RequestModel):
    """A sign of life of a page that shows the case."""

    typing: bool = False
    here: bool = Field(True, description="False once the page leaves the case.")


@dataclass(frozen=True, slots=True)
class TagList:
    tags: Mapping[str, int]


@router.get("")
async def list_cases(
    user_id: UserId,
    cases: CasesDep,
    view: CaseListView = CaseListView.ALL,
    inbox: Annotated[str | None, Query(max_length=36)] = None,
    tag: Annotated[str | None, Query(max_length=200, description="Only cases with this tag.")] = None,
    q: Annotated[str | None, Query(max_length=1000, description="Words of the subject, a message or a note.")] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 50,
    cursor: Annotated[str | None, Query(max_length=100)] = None,
) -> CaseList:
    """Lists the cases of the caller's inboxes, the latest activity first. Counts are of this inbox and tag.

    Only ``waiting`` counts the caller's cases of every inbox and tag.
    """
    page = await cases.list.page(user_id, view, inbox_id=inbox, tag=tag, query=q, limit=limit, cursor=cursor)
    counts = await cases.list.counts(user_id)
    if inbox is not None or tag is not None:
        filtered = await cases.list.counts(user_id, inbox_id=inbox, tag=tag)
        counts = {**filtered, "waiting": counts["waiting"]}
    return CaseList(cases=[CaseRow.of(case) for case in page.items], next=page.next_cursor, counts=counts)


@router.get("/tags")
async def list_tags(user_id: UserId, cases: CasesDep) -> TagList:
    """Lists the tags of the cases of the caller's inboxes, each with the number of its cases."""
    return TagList(await cases.list.tags(user_id))


@router.post("", status_code=201)
async def create_case(new: NewCase, user_id: UserId, cases: CasesDep, services: ServicesDep) -> CaseAndMessage:
    """Stores a contact's message that another program received, in the contact's case or a new one."""
    contact = NamedContact(**new.contact.model_dump())
    received = await cases.received.receive(user_id, new.inbox_id, contact, new.text, client_id=new.client_id)
    return _answered(received, services)


@router.get("/events", response_class=StreamingResponse)
async def stream_cases(user_id: UserId, cases: CasesDep, closing: Closing, metrics: Metrics) -> EventStream:
    """Streams changes of the list: ``case``, and ``counts``, which also comes first. Read the list after that one."""
    return EventStream(list_stream(cases, user_id, metrics), closing=closing)


@router.get("/{case_id}")
async def get_case(
    case_id: str, user_id: UserId, cases: CasesDep, before: Annotated[str | None, Query(max_length=36)] = None
) -> WholeCase:
    """Returns a case with its newest messages, or with those above the message ``before``."""
    opened = await cases.details.get(user_id, case_id, before=before)
    return WholeCase.of(opened, cases.presence.of(case_id))


@router.patch("/{case_id}")
async def change_case(case_id: str, change: CaseChange, user_id: UserId, cases: CasesDep) -> CaseRow:
    """Changes a case's priority, tags or subject."""
    if change.priority is None and change.tags is None and change.subject is None:
        raise InvalidInput("Send at least one of priority, tags and subject.")
    changed = await cases.agents.edit(
        user_id,
        case_id,
        priority=change.priority,
        tags=change.tags,
        subject=change.subject,
        epoch=change.epoch,
    )
    return CaseRow.of(changed)


@router.post("/{case_id}/messages")
async def reply(case_id: str, new: NewReply, user_id: UserId, cases: CasesDep, services: ServicesDep) -> CaseAndMessage:
    """Sends a reply to the contact: the bot stops for good. Or stores what the contact wrote elsewhere."""
    if new.author == "contact":
        if new.client_id is None:
            raise InvalidInput(
                "A contact's message needs a client_id, so that it is stored once however often it is sent."
            )
        received = await cases.received.receive_in(user_id, case_id, new.text, client_id=new.client_id)
        return _answered(received, services)
    message, case = await cases.agents.reply(user_id, case_id, new.text, client_id=new.client_id, epoch=new.epoch)
    return CaseAndMessage(message=CaseMessageData.of(message), case=CaseRow.of(case))


@router.post("/{case_id}/notes")
async def add_note(case_id: str, new: NewMessage, user_id: UserId, cases: CasesDep) -> CaseAndMessage:
    """Adds a note, which the contact and the bot never read."""
    message, case = await cases.agents.note(user_id, case_id, new.text, client_id=new.client_id, epoch=new.epoch)
    return CaseAndMessage(message=CaseMessageData.of(message), case=CaseRow.of(case))


@router.post("/{case_id}/assign")
async def assign(case_id: str, assignment: Assignment, user_id: UserId, cases: CasesDep) -> CaseRow:
    """Assigns a case to a user, or to none. One that the bot has goes to people."""
    return CaseRow.of(await cases.agents.assign(user_id, case_id, assignment.user_id, epoch=assignment.epoch))


@router.post("/{case_id}/snooze")
async def snooze(case_id: str, snooze: Snooze, user_id: UserId, cases: CasesDep) -> CaseRow:
    """Puts a case aside until a moment, or until the contact writes."""
    until = snooze.until.astimezone(UTC)
    return CaseRow.of(await cases.agents.snooze(user_id, case_id, _storable(until), epoch=snooze.epoch))


@router.post("/{case_id}/resolve")
async def resolve(case_id: str, command: Command, user_id: UserId, cases: CasesDep) -> CaseRow:
    """Ends a case."""
    return CaseRow.of(await cases.agents.resolve(user_id, case_id, epoch=command.epoch))


@router.post("/{case_id}/reopen")
async def reopen(case_id: str, command: Command, user_id: UserId, cases: CasesDep) -> CaseRow:
    """Opens a snoozed or resolved case."""
    return CaseRow.of(await cases.agents.reopen(user_id, case_id, epoch=command.epoch))


@router.post("/{case_id}/merge")
async def merge(case_id: str, merge: Merge, user_id: UserId, cases: CasesDep) -> CaseRow:
    """Makes a case a part of another one of the same contact, and returns that one."""
    return CaseRow.of(await cases.agents.merge(user_id, case_id, merge.into, epoch=merge.epoch))


@router.post("/{case_id}/presence", status_code=204)
async def show_presence(case_id: str, sign: Sign, user_id: UserId, cases: CasesDep) -> None:
    """Tells the other agents that the caller has the case open, and whether they are typing. Send it every 15 s."""
    name = await cases.details.require_readable(user_id, case_id)
    await cases.presence.put(case_id, PresentUser(user_id, name, sign.typing), here=sign.here)


@router.get("/{case_id}/events", response_class=StreamingResponse)
async def stream_case(
    case_id: str, user_id: UserId, cases: CasesDep, closing: Closing, metrics: Metrics
) -> EventStream:
    """Streams a case: ``message``, ``delta``, ``event``, ``present`` and ``case``, which comes first.

    Read the case after its first event: what happens from then on is in the stream.
    """
    await cases.details.require_readable(user_id, case_id)
    return EventStream(case_stream(cases, user_id, case_id, metrics), closing=closing)


@router.get("/{case_id}/attachments/{attachment_id}", response_class=Response)
async def get_attachment(case_id: str, attachment_id: str, user_id: UserId, cases: CasesDep) -> Response:
    """Returns a file that the contact sent, to be saved; only pictures may be shown in a page."""
    name, type, content = await cases.details.attachment(user_id, case_id, attachment_id)
    return attachment_response(name, type, content)


def _storable(moment: datetime) -> datetime:
    if moment.year > 9000:
        raise InvalidInput("This moment is too far away. Choose an earlier one.")
    return moment


def _answered(received: tuple[CaseMessage, CaseView], services: Services) -> CaseAndMessage:
    """What was received, which the bot answers if it has the case."""
    message, case = received
    if case.status is CaseStatus.BOT:
        services.answer_case(case.id)
    return CaseAndMessage(message=CaseMessageData.of(message), case=CaseRow.of(case))
