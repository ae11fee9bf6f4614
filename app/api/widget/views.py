"""What the widget's API sends to visitors: no notes, no ids of users, and of the sources only what a reply cites."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from app.domain.attachments import MAX_ATTACHMENT_BYTES
from app.domain.case_views import AttachmentView, CaseMessage, CaseView, ContactView, InboxView
from app.domain.cases import AuthorKind, CaseStatus
from app.domain.citations import citations_of
from app.domain.opening_hours import opens_at
from app.domain.views import MessageStatus
from app.turns.buffer import ReplyBuffer


@dataclass(frozen=True, slots=True)
class WidgetAuthor:
    kind: AuthorKind
    name: str | None  #: of an agent


@dataclass(frozen=True, slots=True)
class WidgetCitation:
    """A passage that a reply cites."""

    number: int
    title: str
    heading: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WidgetMessage:
    id: str
    author: WidgetAuthor
    text: str
    status: str
    created_at: datetime
    client_id: str | None
    citations: tuple[WidgetCitation, ...] = ()
    attachments: tuple[AttachmentView, ...] = ()

    @classmethod
    def of(cls, message: CaseMessage, live: ReplyBuffer | None = None) -> WidgetMessage:
        """``live``: the message is a reply under way, whose text is further than what is stored."""
        text = live.text if live is not None else message.text
        citations = message.citations if live is None else citations_of(text, message.sources)
        is_agent = message.author is AuthorKind.AGENT
        return cls(
            id=message.id,
            author=WidgetAuthor(message.author, message.author_name if is_agent else None),
            text=text,
            status=message.status,
            created_at=message.created_at,
            client_id=message.client_id if message.author is AuthorKind.CONTACT else None,
            citations=tuple(WidgetCitation(one.number, one.title, one.heading, one.text) for one in citations),
            attachments=message.attachments,
        )


@dataclass(frozen=True, slots=True)
class NamedAgent:
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WidgetCase:
    """The state of the visitor's case."""

    status: CaseStatus
    agent: NamedAgent | None
    open: bool  #: whether people answer now
    opens_at: datetime | None  #: when they do next; None if now
    rating: bool  #: whether to ask for one

    @classmethod
    def of(cls, case: CaseView, inbox: InboxView, *, is_rated: bool) -> WidgetCase:
        opens = opens_at(inbox.opening_hours, inbox.time_zone, datetime.now(UTC))
        return cls(
            status=case.status,
            agent=NamedAgent(case.assignee.name) if case.assignee is not None else None,
            open=opens is None,
            opens_at=opens,
            rating=case.status is CaseStatus.RESOLVED and not is_rated,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WidgetInbox:
    name: str
    greeting: str
    bot: bool
    open: bool
    opens_at: datetime | None

    @classmethod
    def of(cls, inbox: InboxView) -> WidgetInbox:
        opens = opens_at(inbox.opening_hours, inbox.time_zone, datetime.now(UTC))
        return cls(name=inbox.name, greeting=inbox.greeting, bot=inbox.bot, open=opens is None, opens_at=opens)


@dataclass(frozen=True, slots=True)
class WidgetContact:
    name: str | None
    email: str | None
    verified: bool

    @classmethod
    def of(cls, contact: ContactView) -> WidgetContact:
        return cls(contact.name, contact.email, contact.verified)


@dataclass(frozen=True, slots=True, kw_only=True)
class WidgetSessionData:
    """All that the widget shows when it opens."""

    token: str  #: another one than was sent, if the visitor has become a known customer
    expires_at: datetime
    inbox: WidgetInbox
    case: WidgetCase | None
    messages: list[WidgetMessage]
    contact: WidgetContact
    last_event_id: str | None  #: where the stream of events goes on
    identity_error: str | None  #: for the website's developers
    attachments: bool = True  #: whether files can be sent
    max_attachment_bytes: int = MAX_ATTACHMENT_BYTES


@dataclass(frozen=True, slots=True)
class WidgetCaseAndMessage:
    message: WidgetMessage
    case: WidgetCase


@dataclass(frozen=True, slots=True)
class WidgetCaseData:
    case: WidgetCase


def is_shown(message: CaseMessage) -> bool:
    """Whether the visitor sees a message: a reply that has no words is none."""
    return bool(message.text.strip() or message.attachments)


def final_position(messages: Sequence[CaseMessage], after: int = -1) -> int:
    """The position up to which no message changes any more."""
    for message in messages:
        if message.status == MessageStatus.STREAMING:
            break
        after = max(after, message.position)
    return after
