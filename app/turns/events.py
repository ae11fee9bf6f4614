"""Events that a reader of a reply in flight receives.

Offsets count characters, of the text and of the thinking apart, and are opaque to clients, which send them back
unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from app.domain.knowledge import Citation
from app.domain.tool_use import ToolUse
from app.domain.views import MessageStatus, ReplyStats


@dataclass(frozen=True, slots=True)
class TurnText:
    """All text that the reply has gained since this reader's offset."""

    text: str
    offset: int  #: the reader's offset after ``text``
    #: ``time.monotonic`` when its oldest token was sampled; None if unknown or if the text is older than the reader
    sampled_at: float | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class TurnReasoning:
    """What the model has thought since this reader's reasoning offset."""

    text: str  #: empty if there is only the news that the thinking has ended
    offset: int  #: the reader's reasoning offset after ``text``
    seconds: float | None  #: how long the model has thought so far; None if unknown
    ended: bool  #: what comes next is the answer, or the end
    #: as in :class:`TurnText`
    sampled_at: float | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class TurnToolUse:
    """A call of a tool, new or with another status. Comes after the text that precedes it."""

    use: ToolUse


@dataclass(frozen=True, slots=True)
class TurnCitations:
    """The sources that the reply cites so far, by number. Comes after the text that cites them."""

    citations: tuple[Citation, ...]


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
    reasoning_offset: int = 0  #: the same of its thinking
    reasoning_seconds: float | None = None  #: how long the model thought; None if it did not


TurnEvent = TurnText | TurnReasoning | TurnToolUse | TurnCitations | TurnProgress | TurnNotice | TurnEnd


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
