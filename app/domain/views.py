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
    tokenize_ms: float | None = None  #: rendering and tokenizing the prompt; None, as below: unknown
    queue_ms: float | None = None  #: from arrival at the engine until it was first scheduled; part of ``ttft_ms``
    decode_ms: float | None = None  #: from the first token to the last, in each round of a reply that calls tools
    delivery_ms: float | None = None  #: from sampling the last tokens until their text could be sent
    draft_tokens: int | None = None  #: guessed by speculative decoding and verified
    accepted_draft_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Reasoning:
    """What a model thought before it answered. Not part of the reply's text."""

    text: str
    seconds: float  #: how long it took


@dataclass(frozen=True, slots=True)
class SettingDifference:
    """A setting in which a version differs from another. Null: the model's own default, or none."""

    name: str  #: a field of the settings, or ``model``
    value: str | float | bool | None
    other: str | float | bool | None  #: that of the version it is compared with


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
    seed: int | None = None  #: that a reply was written with; None where it is unknown
    edited: bool = False  #: the user has written the beginning of a reply
    #: In what the settings of a reply differ from those of the version before it, or, of the first, after it.
    differences: tuple[SettingDifference, ...] = ()


@dataclass(frozen=True, slots=True)
class VersionView:
    """A version of a reply, with the settings that it was written with."""

    message: MessageView
    settings: ChatSettings


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
    folder_id: str | None = None  #: None: it is in no folder
    folder: str | None = None  #: the folder's name


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
    comparison: tuple[VersionView, ...] = ()  #: the replies that the last one is compared with, itself included
    folder_id: str | None = None  #: None: it is in no folder


@dataclass(frozen=True, slots=True)
class Page(Generic[Item]):
    items: tuple[Item, ...]
    next_cursor: str | None  #: pass back to get the next page; None at the end
