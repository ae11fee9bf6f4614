"""Builds the engine's chat messages from a conversation's path, in the form that chat templates demand."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from app.domain.views import Role
from engine import ChatMessage


@dataclass(frozen=True, slots=True)
class PathMessage:
    """A message of a conversation's path."""

    role: Role
    content: str
    token_ids: tuple[int, ...] = ()  #: of a reply: the sampled tokens; empty if unknown
    reasoning: str = ""  #: of a reply: what the model thought before it


@dataclass(frozen=True, slots=True)
class PastTurn:
    """A user's message and its reply."""

    question: str
    reply: str
    token_ids: tuple[int, ...] = ()
    reasoning: str = ""


def past_turns(path: Iterable[PathMessage]) -> list[PastTurn]:
    """The turns of a conversation that belong into a prompt, oldest first.

    A reply that was cut short counts with its text so far. An empty reply (the engine refused, or the
    user stopped it at once) is left out together with its message: the user usually sent that
    again. A longer path has the same turns, plus more.

    Args:
        path: the messages, from the root on.
    """
    turns: list[PastTurn] = []
    question: str | None = None
    for message in path:
        if message.role is Role.USER:
            question = message.content
        elif question is not None and message.content.strip():
            turns.append(PastTurn(question, message.content, message.token_ids, message.reasoning))
            question = None
    return turns


def chat_messages(
    system_prompt: str, turns: Iterable[PastTurn], text: str, partial_reply: PathMessage | None = None
) -> list[ChatMessage]:
    """The messages for a reply to ``text``, or for the rest of ``partial_reply``.

    After an optional system message, roles alternate and ``text`` comes last, as most templates insist. The thinking of
    past replies goes along: the model's template decides what of it stays.
    """
    messages: list[ChatMessage] = []
    if system_prompt.strip():
        messages.append(ChatMessage(role="system", content=system_prompt))
    for turn in turns:
        messages.append(ChatMessage(role="user", content=turn.question))
        messages.append(_reply(turn.reply, turn.token_ids, turn.reasoning))
    messages.append(ChatMessage(role="user", content=text))
    if partial_reply is not None:
        reply = _reply(partial_reply.content, partial_reply.token_ids, partial_reply.reasoning)
        messages.append({**reply, "unfinished": True})
    return messages


def _reply(content: str, token_ids: tuple[int, ...], reasoning: str) -> ChatMessage:
    reply = ChatMessage(role="assistant", content=content)
    if token_ids:
        reply["token_ids"] = token_ids
    if reasoning:
        reply["reasoning"] = reasoning
    return reply
