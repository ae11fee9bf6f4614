"""Builds a response from the engine's deltas: whole, or as the events of a stream."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import count
from typing import Any

from app.api.openai.chat_choices import ShownReasoning, Thoughts
from app.api.openai.errors import OpenAIError
from app.api.openai.logprobs import chat_logprobs
from app.api.openai.responses.output import (
    Event,
    FunctionCallOutput,
    MessageOutput,
    OutputItem,
    ReasoningOutput,
    item_id,
)
from app.api.openai.usage import usage
from engine import Delta, EngineError, FinishReason, Timings, ToolCallDelta


class ResponseBuilder:
    """One response, as it grows.

    Args:
        id: the response's id, with its prefix.
        fields: the fields that stay: those that repeat the request, and the model.
        with_logprobs: the text's tokens carry their log-probabilities.
    """

    def __init__(self, id: str, fields: dict[str, Any], *, with_logprobs: bool) -> None:
        self.id = id
        self._fields = fields
        self._with_logprobs = with_logprobs
        self._created_at = int(time.time())
        self._completed_at: int | None = None
        self._status = "in_progress"
        self._error: dict[str, Any] | None = None
        self._incomplete: dict[str, Any] | None = None
        self._items: list[OutputItem] = []
        self._current: OutputItem | None = None
        self._call: int | None = None  # index of the call that is being written
        self._logprobs: list[dict[str, Any]] = []  # of tokens whose text has not come yet
        self._thoughts = Thoughts(ShownReasoning.STREAMED)
        self._timings: Timings | None = None
        self._numbers = count()

    def to_dict(self) -> dict[str, Any]:
        """Returns the response as it is now."""
        return {
            "id": self.id,
            "object": "response",
            "created_at": self._created_at,
            "completed_at": self._completed_at,
            "status": self._status,
            "error": self._error,
            "incomplete_details": self._incomplete,
            **self._fields,
            "output": [item.to_dict() for item in self._items],
            "usage": self._usage(),
        }

    def begin(self) -> Iterator[Event]:
        """Yields the events before anything is written."""
        yield self._lifecycle("response.created")
        yield self._lifecycle("response.in_progress")

    def feed(self, delta: Delta) -> Iterator[Event]:
        """Adds a delta, and yields its events.

        Raises:
            EngineError: a model server went back to a call that it had ended.
        """
        self._thoughts.feed(delta)
        if self._with_logprobs:
            if delta.text and isinstance(self._current, ReasoningOutput | FunctionCallOutput):
                self._logprobs.clear()  # of the tokens that closed the thinking or the call
            self._logprobs += map(_with_bytes, chat_logprobs(delta.logprobs)["content"])
        if delta.reasoning:
            if not isinstance(self._current, ReasoningOutput):
                yield from self._open(ReasoningOutput(self._next_id("reasoning"), len(self._items)))
            yield from self._write(delta.reasoning)
        if delta.text:
            if not isinstance(self._current, MessageOutput):
                yield from self._open(MessageOutput(self._next_id("message"), len(self._items)))
            yield from self._write(delta.text)
        for call in delta.tool_calls:
            yield from self._feed_call(call)
        if delta.finish_reason is not None:
            self._timings = delta.timings
            yield from self._finish(delta.finish_reason)

    def end(self) -> Event:
        """Returns the event that ends the response."""
        return self._lifecycle(f"response.{self._status}")

    def fail(self, error: OpenAIError) -> Iterator[Event]:
        """Ends the response with an error, and yields the events for it."""
        self._status = "failed"
        self._error = {"code": "server_error", "message": error.message}
        self._completed_at = None
        yield self._lifecycle("response.failed")
        yield self.error(error)

    def error(self, error: OpenAIError) -> Event:
        """Returns the event at which OpenAI's clients raise; ``response.failed`` alone they pass on."""
        fields = {"code": error.code, "message": error.message, "param": error.param}
        kind = "server_error" if error.status >= 500 else "invalid_request_error"
        return self._numbered({"type": "error", **fields, "error": {"type": kind, **fields}})

    def _feed_call(self, call: ToolCallDelta) -> Iterator[Event]:
        if call.index != self._call or not isinstance(self._current, FunctionCallOutput):
            if call.name is None:
                raise EngineError("The model mixed the parts of several tool calls. Try again.")
            self._call = call.index
            opened = FunctionCallOutput(
                self._next_id("function_call"), len(self._items), call.id or self._next_id("function_call"), call.name
            )
            yield from self._open(opened)
        if call.arguments:
            yield from self._write(call.arguments)

    def _open(self, item: OutputItem) -> Iterator[Event]:
        yield from self._close("completed")
        self._items.append(item)
        self._current = item
        yield from map(self._numbered, item.open())

    def _write(self, text: str) -> Iterator[Event]:
        assert self._current is not None
        logprobs, self._logprobs = self._logprobs, []
        yield self._numbered(self._current.write(text, logprobs))

    def _close(self, status: str) -> Iterator[Event]:
        item, self._current = self._current, None
        if item is not None:
            yield from map(self._numbered, item.close(status))

    def _finish(self, reason: FinishReason) -> Iterator[Event]:
        if reason is FinishReason.STOP:
            if all(isinstance(item, ReasoningOutput) for item in self._items):  # the answer is empty, not missing
                yield from self._open(MessageOutput(self._next_id("message"), len(self._items)))
            self._status, self._completed_at = "completed", int(time.time())
        else:
            self._status, self._incomplete = "incomplete", _incomplete_details(reason)
        yield from self._close(self._status)

    def _next_id(self, kind: str) -> str:
        return item_id(kind, self.id, str(len(self._items)))

    def _lifecycle(self, kind: str) -> Event:
        return self._numbered({"type": kind, "response": self.to_dict()})

    def _numbered(self, event: Event) -> Event:
        return {"type": event["type"], "sequence_number": next(self._numbers), **event}

    def _usage(self) -> dict[str, Any] | None:
        counts = usage({0: self._timings}, 1, self._thoughts.num_tokens)
        if counts is None:
            return None
        cached = (counts["prompt_tokens_details"] or {}).get("cached_tokens", 0)
        return {
            "input_tokens": counts["prompt_tokens"],
            "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
            "output_tokens": counts["completion_tokens"],
            "output_tokens_details": counts["completion_tokens_details"],
            "total_tokens": counts["total_tokens"],
        }


def _incomplete_details(reason: FinishReason) -> dict[str, Any]:
    """OpenAI's clients know no deadline: report it as the maximum length, with a stop reason of its own."""
    if reason is FinishReason.DEADLINE:
        return {"reason": "max_output_tokens", "stop_reason": FinishReason.DEADLINE}
    return {"reason": "max_output_tokens" if reason is FinishReason.LENGTH else reason.value}


def _with_bytes(entry: dict[str, Any]) -> dict[str, Any]:
    """Responses have an empty list for a token without bytes, where chat completions have null."""
    top = [{**one, "bytes": one["bytes"] or []} for one in entry["top_logprobs"]]
    return {**entry, "bytes": entry["bytes"] or [], "top_logprobs": top}
