"""Converts other programs' conversations to Deskmate's tree, in which user messages and replies alternate.

- Nodes that are neither (tools, system messages, empty messages) are dropped; their children move up.
- Consecutive messages of one role are joined, with an empty line between them. If another branch forks off between
  them, the part before the fork also becomes a version of its own.
- A reply without a message before it follows an empty message.
- A message without a reply gets an empty reply with status stopped.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal

from app.domain.broken_conversation import BrokenConversation
from app.domain.chat_settings import ChatSettings
from app.domain.conversation_document import MAX_TAG_CHARS, ConversationDocument, MessageDocument, TurnDocument
from app.domain.document_tree import depths_of, latest_tip
from app.domain.ids import new_id
from app.domain.text import MAX_TITLE_CHARS, one_line, title_from
from app.domain.views import UNKNOWN_MODEL, Role

_MAX_ORIGIN_CHARS = 200
#: Text before a fork is duplicated in each branch. Limits the total text to this multiple of the original.
_MAX_GROWTH = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignMessage:
    """A message of another program."""

    key: str
    parent: str | None
    role: Role | None  #: None for a node to drop
    text: str
    at: datetime | None = None
    model: str | None = None
    error: str | None = None
    complete: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignConversation:
    """A conversation of another program. Every ``parent`` is another message's ``key``."""

    program: str
    id: str | None
    messages: Sequence[ForeignMessage]  #: versions of a message are in order
    tip: str | None = None
    title: str | None = None
    created_at: datetime | None = None
    updated_at: datetime | None = None
    pinned: bool = False
    archived: bool = False
    tags: Sequence[str] = ()
    system_prompt: str = ""


def converted(foreign: ForeignConversation, now: datetime) -> ConversationDocument:
    """Converts the conversation, with new ids.

    Raises:
        BrokenConversation: the messages form a cycle, or forks duplicate too much text.
    """
    times = [message.at for message in foreign.messages if message.at is not None]
    created_at = foreign.created_at or min(times, default=now)
    pieces = _pieces(foreign)
    messages = list(_messages(foreign, pieces.all, created_at))
    question = next((message.content for message in messages if message.content), "")
    title = one_line(foreign.title or "")[:MAX_TITLE_CHARS].strip()
    return ConversationDocument(
        id=new_id(),
        title=title or title_from(question),
        title_by="person" if title else "message",
        pinned=foreign.pinned,
        archived=foreign.archived,
        tags=[tag for tag in (one_line(tag)[:MAX_TAG_CHARS].strip() for tag in foreign.tags) if tag],
        settings=ChatSettings(system_prompt=foreign.system_prompt),
        imported_from=_origin(foreign),
        created_at=created_at,
        updated_at=foreign.updated_at or max(times, default=created_at),
        tip=_tip(pieces.by_key.get(foreign.tip or ""), messages),
        messages=messages,
    )


@dataclass(slots=True, eq=False)
class _Piece:
    """A node of the converted tree: one foreign message, linked to the messages of its role right before it."""

    message: ForeignMessage
    before: _Piece | None
    parent: _Piece | None
    continuations: list[_Piece] = field(default_factory=list)  #: following messages of the same role
    answered: bool = False
    id: str = ""

    @property
    def is_message(self) -> bool:
        """Whether it becomes a message, rather than only the beginning of longer ones."""
        return self.answered or not self.continuations

    def parts(self) -> Iterator[ForeignMessage]:
        piece: _Piece | None = self
        while piece is not None:
            yield piece.message
            piece = piece.before


@dataclass(slots=True)
class _Pieces:
    all: list[_Piece] = field(default_factory=list)
    by_key: dict[str, _Piece] = field(default_factory=dict)  #: a dropped node maps to the one before it

    def add(self, message: ForeignMessage, anchor: _Piece | None) -> None:
        """Appends ``message`` after ``anchor``."""
        if anchor is None and message.role is Role.ASSISTANT:
            anchor = self._empty_root()
        if anchor is not None and anchor.message.role is message.role:
            piece = _Piece(message, before=anchor, parent=anchor.parent)
            anchor.continuations.append(piece)
        else:
            piece = _Piece(message, before=None, parent=anchor)
            if anchor is not None:
                anchor.answered = True
        self.all.append(piece)
        self.by_key[message.key] = piece

    def _empty_root(self) -> _Piece:
        if not self.all or self.all[0].message.text:
            self.all.insert(
                0, _Piece(ForeignMessage(key="", parent=None, role=Role.USER, text=""), before=None, parent=None)
            )
        return self.all[0]


def _pieces(foreign: ForeignConversation) -> _Pieces:
    following: dict[str | None, list[ForeignMessage]] = {}
    for message in foreign.messages:
        following.setdefault(message.parent, []).append(message)
    reached = sum(1 for _ in depths_of({message.key: message.parent for message in foreign.messages}))
    if reached < len(foreign.messages):
        raise BrokenConversation("messages", "one of them follows itself")
    pieces = _Pieces()
    waiting = following.get(None, [])[::-1]
    while waiting:
        message = waiting.pop()
        anchor = pieces.by_key.get(message.parent) if message.parent is not None else None
        if message.role is None or not (message.text.strip() or message.error):
            if anchor is not None:
                pieces.by_key[message.key] = anchor
        else:
            pieces.add(message, anchor)
        waiting += following.get(message.key, [])[::-1]
    return pieces


def _messages(
    foreign: ForeignConversation, pieces: Sequence[_Piece], created_at: datetime
) -> Iterator[MessageDocument]:
    remaining_chars = _MAX_GROWTH * sum(len(message.text) + 2 for message in foreign.messages) + 1
    times: dict[str, datetime] = {}
    for piece in pieces:
        if not piece.is_message:
            continue
        parts: list[ForeignMessage] = []
        for part in piece.parts():
            remaining_chars -= len(part.text) + 1
            if remaining_chars < 0:
                raise BrokenConversation("messages", "they fork too often between messages of one role")
            parts.append(part)
        parts.reverse()
        parent_id = piece.parent.id if piece.parent is not None else None
        at = next((part.at for part in parts if part.at), times.get(parent_id or "", created_at))
        message = _message(parts, parent_id, at)
        piece.id = message.id
        times[message.id] = at
        yield message
        if message.role is Role.USER and not piece.answered:
            yield MessageDocument(
                id=new_id(), parent_id=message.id, role=Role.ASSISTANT, status="stopped", content="", created_at=at
            )


def _message(parts: Sequence[ForeignMessage], parent_id: str | None, at: datetime) -> MessageDocument:
    last = parts[-1]
    assert last.role is not None
    status: Literal["complete", "stopped", "error"] = "complete"
    turn = None
    if last.role is Role.ASSISTANT:
        status = "error" if last.error else "complete" if last.complete else "stopped"
        model = next((part.model for part in reversed(parts) if part.model), None)
        if model or status != "complete":  # a reply can be continued only with a turn
            turn = TurnDocument(
                id=new_id(), status=status, model=model or UNKNOWN_MODEL, created_at=at, error=last.error or None
            )
    content = "\n\n".join(part.text for part in parts)
    return MessageDocument(
        id=new_id(), parent_id=parent_id, role=last.role, status=status, content=content, created_at=at, turn=turn
    )


def _tip(piece: _Piece | None, messages: Sequence[MessageDocument]) -> str | None:
    while piece is not None and not piece.is_message:
        piece = piece.continuations[0]
    if piece is None:
        return latest_tip(messages)
    if piece.message.role is Role.ASSISTANT:
        return piece.id
    # The next message must follow a reply.
    latest = {message.parent_id: message.id for message in messages}
    tip = piece.id
    while tip in latest:
        tip = latest[tip]
    return tip


def _origin(foreign: ForeignConversation) -> str:
    if foreign.id is None:
        texts = [[message.role, message.text] for message in foreign.messages]
        return f"{foreign.program}:sha256-{_hash(json.dumps([foreign.title, foreign.system_prompt, texts]))}"
    origin = f"{foreign.program}:{foreign.id}"
    return origin if len(origin) <= _MAX_ORIGIN_CHARS else f"{foreign.program}:sha256-{_hash(foreign.id)}"


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def moment(value: object) -> datetime | None:
    """Parses a timestamp: seconds since 1970, milliseconds or smaller units, or ISO 8601; None if it is neither."""
    try:
        if isinstance(value, str) and not value.replace(".", "", 1).isdecimal():
            parsed = datetime.fromisoformat(value)
            return (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).astimezone(UTC)
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            return None
        seconds = float(value)
        if not 0 < seconds < 1e20:
            return None
        while seconds > 1e11:  # the year 5138
            seconds /= 1000
        return datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return None
