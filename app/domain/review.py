"""Replies to review. Plain data; no I/O."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from app.domain.feedback import Rating, Reason
from app.domain.reply_drafts import UsedDraft
from app.domain.views import MessageStatus, Role


class Flag(StrEnum):
    """Why a reply needs a review: it was rated down, or left its question unanswered."""

    LOW_RATED = "low_rated"  #: a user gave it a thumb down
    FAILED = "failed"  #: the engine failed
    INTERRUPTED = "interrupted"  #: the server stopped before it was complete, and it was not resumed
    EMPTY = "empty"  #: it is complete but has no text
    ASKED_AGAIN = "asked_again"  #: the user regenerated it


class ReviewState(StrEnum):
    OPEN = "open"
    REVIEWED = "reviewed"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class GivenOpinion:
    """A user's feedback on the reply."""

    by: str  #: the user's name
    rating: Rating
    reasons: tuple[Reason, ...]
    comment: str
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewItem:
    """A reply in the list of replies to review. Its texts are excerpts."""

    message_id: str
    conversation_title: str
    user: str  #: name of the user who asked
    model: str | None
    created_at: datetime
    status: MessageStatus
    error: str | None
    flags: tuple[Flag, ...]
    question: str
    reply: str
    opinions: tuple[GivenOpinion, ...]
    reviewed_by: str | None
    reviewed_at: datetime | None


@dataclass(frozen=True, slots=True)
class ExchangeMessage:
    """A message shown with a reply under review."""

    id: str
    role: Role
    content: str
    status: MessageStatus
    created_at: datetime
    reasoning: str = ""  #: what the model thought before it answered


@dataclass(frozen=True, slots=True)
class Exchange:
    """A reply with the messages before it, its siblings, and the messages after it."""

    item: ReviewItem
    before: tuple[ExchangeMessage, ...]  #: oldest first, the question last
    reply: ExchangeMessage
    others: tuple[ExchangeMessage, ...]  #: replies to the same question
    after: tuple[ExchangeMessage, ...]  #: the next message, and its reply
    has_earlier: bool  #: there are more messages before
    drafts: tuple[UsedDraft, ...] = ()  #: of replies to customers, used in this conversation; latest first
