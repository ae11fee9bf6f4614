"""Events that a reader of a reply in flight receives.

Offsets count characters of the reply and are opaque to clients, which send them back unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from app.domain.views import MessageStatus, ReplyStats


@dataclass(frozen=True, slots=True)
class TurnText:
    """All text that the reply has gained since this reader's offset."""

    text: str
    offset: int  #: the reader's offset after ``text``
    #: ``time.monotonic`` when its oldest token was sampled; None if unknown or if the text is older than the reader
    sampled_at: float | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class TurnProgress:
    """Prompt progress: how much of the prompt the engine has processed, in tokens."""

    processed: int
    total: int


@dataclass(frozen=True, slots=True)
class TurnNotice:
    """A notice for the user while the reply continues."""

    message: str


@dataclass(frozen=True, slots=True)
class TurnEnd:
    """The reply is final and saved with ``status``."""

    status: MessageStatus
    stats: ReplyStats | None
    error: str | None
    message_id: str
    offset: int  #: length of the saved reply; less than a reader's offset if a crash lost the last text


TurnEvent = TurnText | TurnProgress | TurnNotice | TurnEnd


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnSnapshot:
    """The current state of a turn."""

    turn_id: str
    conversation_id: str
    message_id: str
    text: str
    offset: int
    status: MessageStatus
    stats: ReplyStats | None
    error: str | None
    progress: TurnProgress | None
