"""Builds the engine's chat messages from a conversation's path, in the form that chat templates demand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from app.domain.knowledge import Passage
from app.domain.tool_use import ToolUse, rounds_of
from app.domain.views import Role
from engine import ChatMessage, ToolCall

NO_ANSWER = "(No answer.)"
"""The end of a past reply that ended with its calls. Some chat templates accept no user's message after a result."""


@dataclass(frozen=True, slots=True)
class PathMessage:
    """A message of a conversation's path."""

    role: Role
    content: str
    token_ids: tuple[int, ...] = ()  #: of a reply: the sampled tokens; empty if unknown
    reasoning: str = ""  #: of a reply: what the model thought before it
    tool_uses: tuple[ToolUse, ...] = ()  #: of a reply: its calls of tools
    sources: tuple[Passage, ...] = ()  #: of a reply: the passages that it was given


@dataclass(frozen=True, slots=True)
class PastTurn:
    """A user's message and its reply."""

    question: str  #: as the model was given it, with the reply's sources
    reply: PathMessage


WithSources = Callable[[Sequence[Passage], str], str]
"""Puts the sources of a reply into the message that it answers."""


def past_turns(path: Iterable[PathMessage], with_sources: WithSources | None = None) -> list[PastTurn]:
    """The turns of a conversation that belong into a prompt, oldest first.

    A reply that was cut short counts with its text so far. An empty reply (the engine refused, or the
    user stopped it at once) is left out together with its message: the user usually sent that
    again. A longer path has the same turns, plus more.

    Args:
        path: the messages, from the root on.
        with_sources: None leaves the sources of past replies out.
    """
    turns: list[PastTurn] = []
    question: str | None = None
    for message in path:
        if message.role is Role.USER:
            question = message.content
        elif question is not None and (message.content.strip() or message.tool_uses):
            turns.append(PastTurn(with_sources(message.sources, question) if with_sources else question, message))
            question = None
    return turns


def chat_messages(
    system_prompt: str,
    turns: Iterable[PastTurn],
    text: str,
    partial_reply: PathMessage | None = None,
    *,
    with_calls: bool = True,
) -> list[ChatMessage]:
    """The messages for a reply to ``text``, or for the rest of ``partial_reply``.

    After an optional system message, roles alternate and ``text`` comes last, as most templates insist; a reply's calls
    of tools are followed by their results. The thinking of past replies goes along: the model's template decides what
    of it stays.

    Args:
        with_calls: past calls of tools and their results go along. Templates of models that call no tools may refuse
            them.
    """
    messages: list[ChatMessage] = []
    if system_prompt.strip():
        messages.append(ChatMessage(role="system", content=system_prompt))
    for turn in turns:
        messages.append(ChatMessage(role="user", content=turn.question))
        *called, last = _reply(turn.reply, with_calls=with_calls)
        messages += [*called, last if last["content"] else _assistant(NO_ANSWER, (), "")]
    messages.append(ChatMessage(role="user", content=text))
    if partial_reply is not None:
        *called, last = _reply(partial_reply, with_calls=with_calls)
        messages += called
        # After results the model writes a new message, unless it has begun one.
        if last["content"] or last.get("reasoning"):
            messages.append({**last, "unfinished": True})
    return messages


def _reply(reply: PathMessage, *, with_calls: bool) -> list[ChatMessage]:
    """A reply's messages: for each round of calls one with the calls and one for each result, then its end."""
    if not with_calls:
        return [_assistant(reply.content, () if reply.tool_uses else reply.token_ids, reply.reasoning)]
    *called, end = rounds_of(reply.content, reply.reasoning, reply.tool_uses)
    messages: list[ChatMessage] = []
    for part in called:
        calls = [ToolCall(use.id, use.name, use.arguments_for_model()) for use in part.uses]
        messages.append({**_assistant(part.text, (), part.reasoning), "tool_calls": calls})
        messages += [ChatMessage(role="tool", content=use.result_for_model(), tool_call_id=use.id) for use in part.uses]
    return [*messages, _assistant(end.text, () if called else reply.token_ids, end.reasoning)]


def _assistant(content: str, token_ids: tuple[int, ...], reasoning: str) -> ChatMessage:
    reply = ChatMessage(role="assistant", content=content)
    if token_ids:
        reply["token_ids"] = token_ids
    if reasoning:
        reply["reasoning"] = reasoning
    return reply
