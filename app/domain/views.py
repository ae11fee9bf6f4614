"""Views of conversations and messages, as shown to users. Plain data; no I/O."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Generic, TypeVar

from app.domain.chat_settings import ChatSettings
from app.domain.feedback import FeedbackView
from app.domain.knowledge import Citation
from app.domain.tool_use import ToolUse
from app.domain.words import SnippetPart

Item = TypeVar("Item")

UNKNOWN_MODEL = "unknown"
"""Stored as the model of an imported reply whose file names none."""


class Role(StrEnum):
    USER = "user"
    ASSISTANT = "assistant"


class MessageStatus(StrEnum):
    """The status of a message. Only ``STREAMING`` may still change."""

    STREAMING = "streaming"
    COMPLETE = "complete"
    STOPPED = "stopped"  #: the user stopped it; the text so far is kept
    INTERRUPTED = "interrupted"  #: the server died or was shut down mid-reply
    ERROR = "error"  #: the engine failed; the text so far is kept


@dataclass(frozen=True, slots=True)
class ReplyStats:
    """Statistics shown under a reply."""

    prompt_tokens: int
    cached_prompt_tokens: int | None  #: None if the model server does not report it
    completion_tokens: int
    ttft_ms: float
    itl_ms: float
    tokens_per_second: float
    finish_reason: str  #: stop | stop_string | length | abort | error | deadline | tool_calls


@dataclass(frozen=True, slots=True)
class Reasoning:
    """What a model thought before it answered. Not part of the reply's text."""

    text: str
    seconds: float  #: how long it took


@dataclass(frozen=True, slots=True)
class MessageView:
    id: str
    conversation_id: str
    parent_id: str | None
    role: Role
    status: MessageStatus
    content: str
    created_at: datetime
    turn_id: str | None = None  #: the turn that wrote (or is writing) an assistant message
    stats: ReplyStats | None = None
    error: str | None = None
    omitted_messages: int = 0  #: oldest messages that did not fit the model's context
    context_length: int | None = None  #: of the model at the time, in tokens
    model: str | None = None  #: name of the model that wrote a reply; None if an import did not say
    has_system_prompt: bool = False  #: a system prompt is never left out
    siblings: tuple[str, ...] = ()  #: ids of all versions of this message, itself included, oldest first
    feedback: FeedbackView | None = None  #: the viewing user's own
    reasoning: str = ""  #: what the model thought before it answered
    reasoning_seconds: float | None = None  #: how long it thought; None if it did not, or if that is unknown
    tool_uses: tuple[ToolUse, ...] = ()  #: the calls of tools in a reply
    citations: tuple[Citation, ...] = ()  #: the sources that a reply cites, by number


@dataclass(frozen=True, slots=True)
class ConversationSummary:
    """A row of the sidebar. Never carries message bodies; the fields below ``tags`` are set for search hits only."""

    id: str
    title: str
    created_at: datetime
    updated_at: datetime
    streaming: bool = False
    pinned: bool = False
    archived: bool = False
    unread: bool = False  #: a reply ended and has not been viewed since
    tags: tuple[str, ...] = ()
    message_id: str | None = None  #: the latest message that matched; None where only the title did
    snippet: tuple[SnippetPart, ...] = ()


@dataclass(frozen=True, slots=True)
class ConversationView:
    """An open conversation: the last messages of the path from the root to its tip."""

    id: str
    title: str
    settings: ChatSettings
    pinned: bool
    archived: bool
    tags: tuple[str, ...]
    messages: tuple[MessageView, ...]  #: oldest of them first
    has_earlier: bool  #: more messages above the first one
    active_turn_id: str | None  #: the turn still streaming, if any
    temporary: bool = False  #: kept in memory only


@dataclass(frozen=True, slots=True)
class Page(Generic[Item]):
    items: tuple[Item, ...]
    next_cursor: str | None  #: pass back to get the next page; None at the end
