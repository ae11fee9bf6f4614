"""Messages, deltas and thinking of a chat completion's choices, in OpenAI's format."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Any

from engine import Delta, FinishReason, ToolCallDelta

TOOL_CALLS = "tool_calls"
"""The finish reason of a reply that ended with calls."""


class ShownReasoning(StrEnum):
    """How a response shows what the model thought."""

    STREAMED = "streamed"
    WHOLE = "whole"  #: in one chunk, when the thinking is complete
    HIDDEN = "hidden"


class Thoughts:
    """The thinking of a response's choices: counts its tokens, and holds it back where the request asks for that.

    Deltas do not say which of their tokens are thinking. Those up to the last one that brings a thought count, which
    includes the tag that opens the block but not the one that closes it. Of a delta that also brings a part of the
    answer, since a slow reader gets several in one, the share by characters counts.
    """

    def __init__(self, shown: ShownReasoning) -> None:
        self._shown = shown
        self._held: defaultdict[int, list[str]] = defaultdict(list)
        self._tokens: defaultdict[int, int] = defaultdict(int)
        self._silent: defaultdict[int, int] = defaultdict(int)  # tokens since the last thought

    def feed(self, delta: Delta) -> str:
        """Returns the thinking to send with this delta."""
        index = delta.index
        answers = bool(delta.text or delta.tool_calls)
        if delta.reasoning:
            self._tokens[index] += self._silent.pop(index, 0) + _thinking_tokens(delta)
        elif answers:
            self._silent.pop(index, None)
        elif delta.num_tokens:
            self._silent[index] += delta.num_tokens
        if self._shown is ShownReasoning.STREAMED:
            return delta.reasoning
        if self._shown is ShownReasoning.HIDDEN:
            return ""
        if delta.reasoning:
            self._held[index].append(delta.reasoning)
        return "".join(self._held.pop(index, ())) if answers or delta.finish_reason is not None else ""

    @property
    def num_tokens(self) -> int:
        """Tokens of thinking in all choices together."""
        return sum(self._tokens.values())


def _thinking_tokens(delta: Delta) -> int:
    answer = len(delta.text) + sum(len(call.arguments) + len(call.name or "") for call in delta.tool_calls)
    return round(delta.num_tokens * len(delta.reasoning) / (len(delta.reasoning) + answer))


class CallingChoices:
    """Which choices of a response call tools: their finish reason is another one."""

    def __init__(self) -> None:
        self._indexes: set[int] = set()

    def note(self, delta: Delta) -> None:
        if delta.tool_calls:
            self._indexes.add(delta.index)

    def finish_reason(self, delta: Delta) -> str | None:
        """Returns the finish reason of a delta. A call that the maximum length cut off still ends with ``length``."""
        if delta.finish_reason is FinishReason.STOP and delta.index in self._indexes:
            return TOOL_CALLS
        return delta.finish_reason


def chat_delta(delta: Delta, reasoning: str) -> dict[str, Any]:
    """Returns ``choices[].delta`` of a chunk; empty where the delta brings nothing to read."""
    fields: dict[str, Any] = _reasoning_fields(reasoning)
    if delta.text:
        fields["content"] = delta.text
    if delta.tool_calls:
        fields["tool_calls"] = [_call_delta(call) for call in delta.tool_calls]
    return fields


def chat_message(parts: Sequence[Delta], reasoning: str) -> dict[str, Any]:
    """Returns ``choices[].message`` of a whole response, made of the choice's deltas."""
    text = "".join(part.text for part in parts)
    calls = join_calls(call for part in parts for call in part.tool_calls)
    message: dict[str, Any] = {"role": "assistant", "content": text or None if calls else text, "refusal": None}
    message |= _reasoning_fields(reasoning)
    if calls:
        message["tool_calls"] = calls
    return message


def join_calls(deltas: Iterable[ToolCallDelta]) -> list[dict[str, Any]]:
    """Returns the calls that the parts make, in the order of their index."""
    calls: dict[int, dict[str, Any]] = {}
    arguments: defaultdict[int, list[str]] = defaultdict(list)
    for delta in deltas:
        if delta.index not in calls:
            calls[delta.index] = {"id": delta.id, "type": "function", "function": {"name": delta.name}}
        arguments[delta.index].append(delta.arguments)
    for index, call in calls.items():
        call["function"]["arguments"] = "".join(arguments[index])
    return [calls[index] for index in sorted(calls)]


def _call_delta(call: ToolCallDelta) -> dict[str, Any]:
    if call.name is None:
        return {"index": call.index, "function": {"arguments": call.arguments}}
    function = {"name": call.name, "arguments": call.arguments}
    return {"index": call.index, "id": call.id, "type": "function", "function": function}


def _reasoning_fields(reasoning: str) -> dict[str, Any]:
    """The field has two names: vLLM and OpenRouter write ``reasoning``, DeepSeek, SGLang and llama.cpp the other."""
    return {"reasoning": reasoning, "reasoning_content": reasoning} if reasoning else {}
