"""What a reader of a reply in flight receives.

Offsets count characters of the reply; clients hand them back as they came.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from app.domain.views import MessageStatus, ReplyStats


@dataclass(frozen=True, slots=True)
class TurnText:
    """Everything the reply has gained since this reader's offset."""

    text: str
    offset: int  #: where the reader stands after ``text``
    #: ``time.monotonic`` when the oldest token of it was sampled, where that is known and the reader was there already
    sampled_at: float | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class TurnProgress:
    """How much of the prompt the engine has read, in tokens."""

    processed: int
    total: int


@dataclass(frozen=True, slots=True)
class TurnNotice:
    """Something to tell the person while the reply goes on."""

    message: str


@dataclass(frozen=True, slots=True)
class TurnEnd:
    """The reply will not change any more, and it is saved as ``status`` says."""

    status: MessageStatus
    stats: ReplyStats | None
    error: str | None
    message_id: str
    offset: int  #: length of the saved reply; less than a reader's own where a crash lost the last words


TurnEvent = TurnText | TurnProgress | TurnNotice | TurnEnd


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnSnapshot:
    """A turn as it stands now."""

    turn_id: str
    conversation_id: str
    message_id: str
    text: str
    offset: int
    status: MessageStatus
    stats: ReplyStats | None
    error: str | None
    progress: TurnProgress | None
