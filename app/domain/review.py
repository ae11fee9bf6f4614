"""Replies that somebody should look at. Plain data; no I/O."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from app.domain.feedback import Rating, Reason
from app.domain.views import MessageStatus, Role


class Flag(StrEnum):
    """Why a reply should be looked at: it was not liked, or left its question without an answer."""

    LOW_RATED = "low_rated"  #: somebody gave it a thumb down
    FAILED = "failed"  #: the engine could not write it
    INTERRUPTED = "interrupted"  #: the server ended before it was complete, and nobody has continued it
    EMPTY = "empty"  #: it is complete and has no text
    ASKED_AGAIN = "asked_again"  #: the person asked for another one in its place


class ReviewState(StrEnum):
    OPEN = "open"
    REVIEWED = "reviewed"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class GivenOpinion:
    """What somebody thinks of the reply."""

    by: str  #: the person's name
    rating: Rating
    reasons: tuple[Reason, ...]
    comment: str
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewItem:
    """A reply in the list. Its texts are beginnings."""

    message_id: str
    conversation_title: str
    user: str  #: who asked
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
    """A message around a reply that is looked at."""

    id: str
    role: Role
    content: str
    status: MessageStatus
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Exchange:
    """A reply with what was said before, other replies in its place, and what came after."""

    item: ReviewItem
    before: tuple[ExchangeMessage, ...]  #: oldest first, the question last
    reply: ExchangeMessage
    others: tuple[ExchangeMessage, ...]  #: replies to the same question
    after: tuple[ExchangeMessage, ...]  #: what was sent next, and the reply to it
    has_earlier: bool  #: more was said before
