"""What the model is sent: a conversation's path, as chat templates demand it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from app.domain.views import Role
from engine import ChatMessage


class PathMessage(Protocol):
    """What counts of a message here."""

    @property
    def role(self) -> Role: ...

    @property
    def content(self) -> str: ...


def chat_messages(system_prompt: str, path: Iterable[PathMessage], text: str) -> list[ChatMessage]:
    """The messages for a reply to ``text``.

    After an optional system message, roles alternate and ``text`` comes last, as most templates
    insist. Replies that were cut short count with what there is of them. A reply without a word
    (the engine refused, or it was stopped at once) is left out together with the message it did not
    answer: the person usually sent that again.

    Args:
        path: the messages from the root to the one before ``text``.
    """
    messages: list[ChatMessage] = []
    if system_prompt.strip():
        messages.append(ChatMessage(role="system", content=system_prompt))
    question: str | None = None
    for message in path:
        if message.role is Role.USER:
            question = message.content
        elif question is not None and message.content.strip():
            messages.append(ChatMessage(role="user", content=question))
            messages.append(ChatMessage(role="assistant", content=message.content))
            question = None
    messages.append(ChatMessage(role="user", content=text))
    return messages
