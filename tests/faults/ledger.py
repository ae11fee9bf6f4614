"""What a server has acknowledged, to be compared with what is in its database after it died."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Literal

from sqlalchemy import select, text
from sqlalchemy.orm import Session

from app.store.db.models import Conversation, Message, Turn
from tests.faults.scripted_replies import whole_reply

Kind = Literal["new", "next", "edit", "again", "resume"]


@dataclass
class SentMessage:
    """A message of the person's that a server has answered 201 for."""

    id: str
    conversation_id: str
    parent_id: str | None
    text: str


@dataclass
class RecordedReply:
    """A reply that a server has answered 201 for."""

    id: str
    turn_id: str
    conversation_id: str
    question_id: str
    question: str
    stored: str = ""  #: the longest text of it that was read from the database
    begun_with: int = 0  #: characters it had when it was asked to go on
    seen: str = ""  #: the longest text of it that was streamed
    status: str | None = None  #: as it ended; None while it is written
    ended_at: int = 0  #: its length by then
    stopping: bool = False  #: somebody asked to stop it
    reading: bool = False  #: somebody hears it: its stream is open, and an event has come


@dataclass
class PendingRequest:
    """What was asked of a server, and whether it arrived is not known until it answers."""

    kind: Kind
    path: str
    body: dict[str, Any]
    question: str  #: what the reply is to
    conversation_id: str | None = None
    parent_id: str | None = None  #: of a new message
    reply_id: str | None = None  #: of one that goes on


@dataclass
class Ledger:
    """Of one database, through all deaths of its servers."""

    sent: dict[str, SentMessage] = field(default_factory=dict)
    replies: dict[str, RecordedReply] = field(default_factory=dict)
    tips: dict[str, str] = field(default_factory=dict)  #: conversation → the reply that was asked for last
    unanswered: list[PendingRequest] = field(default_factory=list)
    num_streamed: int = 0  #: characters that were streamed
    kept: int = 0  #: characters of replies in flight that were found again after a kill
    _goal: int = 0
    _reached: asyncio.Event = field(default_factory=asyncio.Event)

    async def wait_until_streamed(self, characters: int) -> None:
        """Wait until so many more were streamed."""
        self._goal = self.num_streamed + characters
        self._reached.clear()
        self.add_streamed(0)
        await self._reached.wait()

    def add_streamed(self, characters: int) -> None:
        self.num_streamed += characters
        if self.num_streamed >= self._goal:
            self._reached.set()

    def acknowledged(self, request: PendingRequest, answer: dict[str, Any]) -> RecordedReply:
        """Note down what a 201 says."""
        self.unanswered.remove(request)
        if request.kind in ("new", "next", "edit"):
            sent = SentMessage(
                answer["user_message_id"], answer["conversation_id"], request.parent_id, request.question
            )
            self.sent[sent.id] = sent
        if request.kind == "resume":
            assert answer["message_id"] == request.reply_id
            reply = self.replies[answer["message_id"]]
            reply.status, reply.stopping, reply.begun_with = None, False, reply.ended_at
        else:
            assert answer["message_id"] not in self.replies, "another reply, not one that is there"
            reply = RecordedReply(
                id=answer["message_id"],
                turn_id=answer["turn_id"],
                conversation_id=answer["conversation_id"],
                question_id=answer["user_message_id"],
                question=request.question,
            )
            self.replies[reply.id] = reply
        self.tips[reply.conversation_id] = reply.id
        return reply

    def in_flight(self) -> list[RecordedReply]:
        return [reply for reply in self.replies.values() if reply.status is None]

    def can_continue(self, reply: RecordedReply) -> bool:
        """Whether Continue is offered: it was cut short, has a word, and nothing follows it."""
        return (
            reply.status in ("interrupted", "stopped")
            and reply.ended_at > 0
            and not any(sent.parent_id == reply.id for sent in self.sent.values())
        )

    def check(self, session: Session) -> None:
        """Compare with a database on which no reply is being written; then note down how those in flight ended.

        Raises:
            AssertionError: something acknowledged is missing or was changed, or the tree is not whole.
        """
        messages = {message.id: message for message in session.scalars(select(Message))}
        turns = {turn.message_id: turn for turn in session.scalars(select(Turn))}
        conversations = {conversation.id: conversation for conversation in session.scalars(select(Conversation))}
        check_tree(session, conversations, messages, turns)
        for request in self.unanswered:
            if request.reply_id is not None:  # it may have gone on, or not
                self.replies[request.reply_id].status = None
        for sent in self.sent.values():
            message = messages.get(sent.id)
            assert message is not None, f"{sent} is missing"
            assert message.role == "user"
            assert (message.content, message.status) == (sent.text, "complete")
            assert (message.conversation_id, message.parent_id) == (sent.conversation_id, sent.parent_id)
        for reply in self.replies.values():
            message = messages.get(reply.id)
            assert message is not None, f"{reply} is missing"
            assert message.role == "assistant"
            assert (message.conversation_id, message.parent_id) == (reply.conversation_id, reply.question_id)
            in_flight = reply.status is None
            _check_reply(reply, message, turns[reply.id])
            if in_flight and reply.status == "interrupted":
                self.kept += reply.ended_at - reply.begun_with
        self._check_nothing_else(messages)
        unsure = {request.conversation_id: request for request in self.unanswered}
        for conversation_id, tip in self.tips.items():
            shown = conversations[conversation_id].tip_message_id
            if shown != tip:
                assert conversation_id in unsure
                resumed = unsure[conversation_id].reply_id
                assert shown == resumed or shown not in self.replies, "another branch is shown"
                if resumed is not None:
                    self.tips[conversation_id] = resumed

    def _check_nothing_else(self, messages: dict[str, Message]) -> None:
        """What was not answered may be there once. Nothing else is there, and nothing twice."""
        new = [request for request in self.unanswered if request.kind in ("new", "next", "edit")]
        again = [request for request in self.unanswered if request.kind == "again"]
        texts = Counter(message.content for message in messages.values() if message.role == "user")
        known_texts = Counter(sent.text for sent in self.sent.values())
        assert texts <= known_texts + Counter(request.question for request in new)
        replies = Counter(
            messages[message.parent_id].content
            for message in messages.values()
            if message.role == "assistant" and message.parent_id
        )
        known_replies = Counter(reply.question for reply in self.replies.values())
        assert replies <= known_replies + Counter(request.question for request in [*new, *again])


def _check_reply(reply: RecordedReply, message: Message, turn: Turn) -> None:
    whole = whole_reply(reply.question)
    content, status = message.content, message.status
    assert whole.startswith(content), f"{reply} is not what was said: {content!r}"
    assert whole.startswith(reply.seen), f"{reply} was not shown as it was said"
    assert content.startswith(reply.stored), f"of {reply} is less there than there was: {content!r}"
    if status == "complete":
        assert content == whole
    if status == "interrupted":
        assert turn.error, "nobody says why it ended"
        assert turn.error.endswith(".")
    if reply.status is not None:
        assert (status, len(content)) == (reply.status, reply.ended_at), f"{reply} has changed since it ended"
        return
    assert status in ("interrupted", "complete", *(["stopped"] if reply.stopping else [])), f"{reply}: {status}"
    # What the tab has seen beyond the last checkpoint is gone; it is the tab that must give it up.
    reply.status, reply.ended_at, reply.seen, reply.stored = status, len(content), content, content


def check_tree(
    session: Session,
    conversations: dict[str, Conversation],
    messages: dict[str, Message],
    turns: dict[str, Turn],
) -> None:
    """Every message hangs where it should, every reply has its turn, and none is being written."""
    children = Counter(message.parent_id for message in messages.values())
    for message in messages.values():
        assert message.conversation_id in conversations
        if message.parent_id is None:
            assert (message.role, message.position) == ("user", 0)
            continue
        parent = messages[message.parent_id]
        assert parent.conversation_id == message.conversation_id
        assert message.position == parent.position + 1
        assert {message.role, parent.role} == {"user", "assistant"}
    for message in messages.values():
        if message.role == "user":
            assert children[message.id], "a message of the person's has always a reply, be it an empty one"
            continue
        turn = turns[message.id]
        assert turn.conversation_id == message.conversation_id
        assert turn.status == message.status, f"{message.id}: its turn is {turn.status}, it is {message.status}"
        assert turn.checkpoint_offset == len(message.content)
        assert turn.ended_at is not None
    assert len(turns) == sum(message.role == "assistant" for message in messages.values())
    for conversation in conversations.values():
        tip = messages[conversation.tip_message_id or ""]
        assert (tip.conversation_id, tip.role) == (conversation.id, "assistant")
        assert not children[tip.id], "what is shown goes to the end of a branch"
    if session.get_bind().dialect.name == "sqlite":
        assert session.execute(text("PRAGMA integrity_check")).scalars().all() == ["ok"]
        assert session.execute(text("PRAGMA foreign_key_check")).all() == []
