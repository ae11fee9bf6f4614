"""Cases, messages and events as the API sends them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from app.cases.presence import PresentUser
from app.domain.case_views import (
    AttachmentView,
    CaseEventView,
    CaseMessage,
    CaseView,
    ContactView,
    InboxView,
    NamedUser,
    OpenCase,
    RatingView,
)
from app.domain.cases import AuthorKind, CaseEventKind, CasePriority, CaseStatus, HandOffReason
from app.domain.knowledge import Citation, Passage


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxData:
    """An inbox, without its secret."""

    id: str
    name: str
    kind: str
    token: str  #: public: the address of its widget
    allowed_origins: tuple[str, ...]
    time_zone: str
    opening_hours: tuple[Mapping[str, Any], ...]
    greeting: str
    collections: tuple[str, ...]
    bot: bool
    members: tuple[NamedUser, ...]

    @classmethod
    def of(cls, inbox: InboxView) -> InboxData:
        return cls(
            id=inbox.id,
            name=inbox.name,
            kind=inbox.kind,
            token=inbox.token,
            allowed_origins=inbox.allowed_origins,
            time_zone=inbox.time_zone,
            opening_hours=inbox.opening_hours,
            greeting=inbox.greeting,
            collections=inbox.collections,
            bot=inbox.bot,
            members=inbox.members,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ContactData:
    id: str
    name: str | None
    email: str | None
    verified: bool
    external_id: str | None
    language: str | None
    time_zone: str | None

    @classmethod
    def of(cls, contact: ContactView) -> ContactData:
        return cls(
            id=contact.id,
            name=contact.name,
            email=contact.email,
            verified=contact.verified,
            external_id=contact.external_id,
            language=contact.language,
            time_zone=contact.time_zone,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseRow:
    """A row of the list of cases."""

    id: str
    inbox_id: str
    contact: ContactData
    status: CaseStatus
    priority: CasePriority
    assignee: NamedUser | None
    subject: str
    preview: str
    tags: tuple[str, ...]
    epoch: int  #: grows when a person acts
    revision: int  #: grows with every change
    waiting_since: datetime | None
    snoozed_until: datetime | None
    first_reply_at: datetime | None
    resolved_at: datetime | None
    merged_into: str | None
    created_at: datetime
    updated_at: datetime

    @classmethod
    def of(cls, case: CaseView) -> CaseRow:
        return cls(
            id=case.id,
            inbox_id=case.inbox_id,
            contact=ContactData.of(case.contact),
            status=case.status,
            priority=case.priority,
            assignee=case.assignee,
            subject=case.subject,
            preview=case.preview,
            tags=case.tags,
            epoch=case.epoch,
            revision=case.revision,
            waiting_since=case.waiting_since,
            snoozed_until=case.snoozed_until,
            first_reply_at=case.first_reply_at,
            resolved_at=case.resolved_at,
            merged_into=case.merged_into,
            created_at=case.created_at,
            updated_at=case.updated_at,
        )


@dataclass(frozen=True, slots=True)
class NamedActor:
    kind: AuthorKind
    id: str | None
    name: str | None  #: None for the bot and the system, and for one who was deleted or has no name


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseMessageData:
    id: str
    author: NamedActor
    internal: bool
    text: str
    status: str
    created_at: datetime
    client_id: str | None
    citations: tuple[Citation, ...] = ()
    sources: tuple[Passage, ...] = ()
    attachments: tuple[AttachmentView, ...] = ()

    @classmethod
    def of(cls, message: CaseMessage) -> CaseMessageData:
        """What an agent sees of a message. The contact has seen what it cites; other sources keep their places only."""
        cited = {citation.number for citation in message.citations}
        return cls(
            id=message.id,
            author=NamedActor(message.author, message.author_id, message.author_name),
            internal=message.internal,
            text=message.text,
            status=message.status,
            created_at=message.created_at,
            client_id=message.client_id,
            citations=message.citations,
            sources=tuple(
                source if number in cited else replace(source, title="", heading="", text="")
                for number, source in enumerate(message.sources, start=1)
            ),
            attachments=message.attachments,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseEventData:
    id: str
    kind: CaseEventKind
    reason: HandOffReason | None
    actor: NamedActor
    at: datetime
    details: Mapping[str, Any]

    @classmethod
    def of(cls, event: CaseEventView) -> CaseEventData:
        return cls(
            id=event.id,
            kind=event.kind,
            reason=event.reason,
            actor=NamedActor(event.actor.kind, event.actor.id, event.actor_name),
            at=event.at,
            details=event.details,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseList:
    cases: list[CaseRow]
    next: str | None  #: the next page's cursor
    counts: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseAndMessage:
    message: CaseMessageData
    case: CaseRow


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeCase:
    """A case with what its page shows."""

    case: CaseRow
    messages: list[CaseMessageData]
    has_earlier: bool
    events: list[CaseEventData]
    other_cases: list[CaseRow]
    present: list[PresentUser] = field(default_factory=list)
    rating: RatingView | None = None

    @classmethod
    def of(cls, opened: OpenCase, present: list[PresentUser]) -> WholeCase:
        return cls(
            case=CaseRow.of(opened.case),
            messages=[CaseMessageData.of(message) for message in opened.messages],
            has_earlier=opened.has_earlier,
            events=[CaseEventData.of(event) for event in opened.events],
            other_cases=[CaseRow.of(case) for case in opened.other_cases],
            present=present,
            rating=opened.rating,
        )
