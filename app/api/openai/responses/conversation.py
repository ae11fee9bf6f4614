"""Converts items to the messages that chat templates render."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from app.api.openai.errors import OpenAIError
from app.api.openai.messages import MAX_SHOWN_LENGTH
from app.api.openai.responses.items import (
    FunctionCallItem,
    FunctionCallOutputItem,
    InputItem,
    MessageItem,
    ReasoningItem,
)
from engine import ChatMessage, ToolCall


def check_outputs(items: Sequence[InputItem], known_calls: Collection[str] = ()) -> None:
    """Checks that each result has its call before it.

    Args:
        known_calls: ids of the calls that the conversation made before these items.

    Raises:
        OpenAIError: a result has none.
    """
    called = set(known_calls)
    for index, item in enumerate(items):
        if isinstance(item, FunctionCallItem):
            called.add(item.call_id)
        elif isinstance(item, FunctionCallOutputItem) and item.call_id not in called:
            field = f"input[{index}].call_id"
            shown = f"{item.call_id[:MAX_SHOWN_LENGTH]!a}"
            raise OpenAIError(
                400,
                "invalid_input",
                f"The field '{field}' is {shown}, but no function_call before it has that call_id.",
                field,
            )


def calls_of(items: Sequence[InputItem]) -> set[str]:
    """Returns the ids of the calls among the items."""
    return {item.call_id for item in items if isinstance(item, FunctionCallItem)}


def to_messages(instructions: str | None, items: Sequence[InputItem]) -> list[ChatMessage]:
    """Returns the conversation: the instructions as its system message, and a message for each turn of its items.

    Thinking, text and calls that follow each other are one reply, as chat templates have it.
    """
    messages = _Messages()
    for item in items:
        messages.add(item)
    conversation = messages.finish()
    if not instructions:
        return conversation
    system: ChatMessage = {"role": "system", "content": instructions}
    if conversation and conversation[0]["role"] == "system":  # many templates take one system message only
        system["content"] = f"{instructions}\n\n{conversation.pop(0)['content']}"
    return [system, *conversation]


class _Messages:
    def __init__(self) -> None:
        self._messages: list[ChatMessage] = []
        self._reasoning: list[str] = []
        self._texts: list[str] = []
        self._calls: list[ToolCall] = []

    def add(self, item: InputItem) -> None:
        match item:
            case ReasoningItem():
                if self._texts or self._calls:
                    self._end_reply()
                self._reasoning.append(item.text)
            case FunctionCallItem():
                self._calls.append(ToolCall(item.call_id, item.name, item.arguments))
            case MessageItem(role="assistant"):
                if self._texts and not self._calls:
                    self._end_reply()  # two messages in a row are not one
                self._texts.append(item.text)
            case MessageItem():
                self._end_reply()
                role = "system" if item.role == "developer" else item.role
                self._messages.append({"role": role, "content": item.text})
            case FunctionCallOutputItem():
                self._end_reply()
                self._messages.append({"role": "tool", "content": item.text, "tool_call_id": item.call_id})

    def finish(self) -> list[ChatMessage]:
        self._end_reply()
        return self._messages

    def _end_reply(self) -> None:
        if not (self._reasoning or self._texts or self._calls):
            return
        reply: ChatMessage = {"role": "assistant", "content": "".join(self._texts)}
        if reasoning := "\n".join(self._reasoning):
            reply["reasoning"] = reasoning
        if self._calls:
            reply["tool_calls"] = tuple(self._calls)
        self._messages.append(reply)
        self._reasoning, self._texts, self._calls = [], [], []
