"""Cases as pages and programs read them: the inbox, the contact, rows, messages and events. Plain data; no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from app.domain.cases import Actor, AuthorKind, CaseEventKind, CasePriority, CaseStatus, HandOffReason
from app.domain.knowledge import Citation, Passage


@dataclass(frozen=True, slots=True)
class NamedUser:
    id: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxView:
    """An inbox, without its secret."""

    id: str
    user_id: str  #: the account that owns its conversations
    name: str
    kind: str
    token: str
    allowed_origins: tuple[str, ...]
    time_zone: str
    opening_hours: tuple[Mapping[str, Any], ...]
    greeting: str
    collections: tuple[str, ...]
    bot: bool
    members: tuple[NamedUser, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ContactView:
    id: str
    inbox_id: str
    name: str | None
    email: str | None
    verified: bool
    external_id: str | None = None
    language: str | None = None
    time_zone: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseView:
    """A row of the list of cases. Never carries messages."""

    id: str
    conversation_id: str
    inbox_id: str
    contact: ContactView
    status: CaseStatus
    priority: CasePriority
    assignee: NamedUser | None
    subject: str
    preview: str
    tags: tuple[str, ...]
    epoch: int
    revision: int
    bot_from: int
    waiting_since: datetime | None
    snoozed_until: datetime | None
    first_reply_at: datetime | None
    resolved_at: datetime | None
    merged_into: str | None
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class AttachmentView:
    id: str
    name: str
    type: str
    size: int  #: in bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseMessage:
    id: str
    case_id: str
    position: int
    author: AuthorKind
    author_id: str | None
    author_name: str | None
    internal: bool
    text: str
    status: str
    created_at: datetime
    client_id: str | None
    citations: tuple[Citation, ...] = ()
    sources: tuple[Passage, ...] = ()
    attachments: tuple[AttachmentView, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseEventView:
    id: str
    case_id: str
    sequence: int
    kind: CaseEventKind
    reason: HandOffReason | None
    actor: Actor
    actor_name: str | None
    at: datetime
    details: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RatingView:
    score: int
    comment: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenCase:
    """A case with what its page shows."""

    case: CaseView
    messages: tuple[CaseMessage, ...]  #: oldest first
    has_earlier: bool
    events: tuple[CaseEventView, ...]
    other_cases: tuple[CaseView, ...]
    rating: RatingView | None
