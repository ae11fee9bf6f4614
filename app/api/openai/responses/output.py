"""Output items: what the model writes, and the events that stream each of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

from app.api.openai.responses.items import ID_PREFIXES

Event = dict[str, Any]
"""An event without its sequence number."""


class OutputItem(ABC):
    """One item while it is written.

    Args:
        id: the item's id.
        position: its place in the response's output.
    """

    type: str

    def __init__(self, id: str, position: int) -> None:
        self.id = id
        self._position = position
        self._written: list[str] = []
        self._status = "in_progress"

    @property
    def text(self) -> str:
        return "".join(self._written)

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Returns the item as it is now."""

    @abstractmethod
    def _write(self, text: str, logprobs: Sequence[dict[str, Any]]) -> Event: ...

    @abstractmethod
    def _finish(self) -> Iterator[Event]: ...

    def open(self) -> Iterator[Event]:
        """Yields the events that begin the item."""
        yield {"type": "response.output_item.added", "output_index": self._position, "item": self.to_dict()}

    def write(self, text: str, logprobs: Sequence[dict[str, Any]] = ()) -> Event:
        """Adds text to the item and returns its event."""
        self._written.append(text)
        return self._write(text, logprobs)

    def close(self, status: str) -> Iterator[Event]:
        """Yields the events that end the item. ``status``: ``completed`` or ``incomplete``."""
        yield from self._finish()
        self._status = status
        yield {"type": "response.output_item.done", "output_index": self._position, "item": self.to_dict()}

    def _event(self, kind: str, **fields: Any) -> Event:
        return {"type": f"response.{kind}", "item_id": self.id, "output_index": self._position, **fields}


class _ItemWithPart(OutputItem):
    """An item whose text is its one content part."""

    event: str

    _is_open = False

    @abstractmethod
    def _part(self, text: str) -> dict[str, Any]: ...

    def open(self) -> Iterator[Event]:
        yield from super().open()
        self._is_open = True
        yield self._event("content_part.added", content_index=0, part=self._part(""))

    def _content(self) -> list[dict[str, Any]]:
        return [self._part(self.text)] if self._is_open else []

    def _finish(self) -> Iterator[Event]:
        yield self._event(f"{self.event}.done", content_index=0, text=self.text, **self._extras())
        yield self._event("content_part.done", content_index=0, part=self._part(self.text))

    def _extras(self) -> dict[str, Any]:
        return {}


class MessageOutput(_ItemWithPart):
    """The answer's text."""

    type = "message"
    event = "output_text"

    def __init__(self, id: str, position: int) -> None:
        super().__init__(id, position)
        self._logprobs: list[dict[str, Any]] = []

    def to_dict(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "type": self.type,
            "role": "assistant",
            "status": self._status,
            "content": self._content(),
        }

    def _part(self, text: str) -> dict[str, Any]:
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": list(self._logprobs)}

    def _write(self, text: str, logprobs: Sequence[dict[str, Any]]) -> Event:
        self._logprobs += logprobs
        return self._event("output_text.delta", content_index=0, delta=text, logprobs=list(logprobs))

    def _extras(self) -> dict[str, Any]:
        return {"logprobs": list(self._logprobs)}


class ReasoningOutput(_ItemWithPart):
    """The model's thinking before it answers. Its summary is empty, since it is returned in full."""

    type = "reasoning"
    event = "reasoning_text"

    def to_dict(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "type": self.type,
            "status": self._status,
            "summary": [],
            "content": self._content(),
        }

    def _part(self, text: str) -> dict[str, Any]:
        return {"type": "reasoning_text", "text": text}

    def _write(self, text: str, logprobs: Sequence[dict[str, Any]]) -> Event:  # noqa: ARG002 - only text has them
        return self._event("reasoning_text.delta", content_index=0, delta=text)


class FunctionCallOutput(OutputItem):
    """A call of a function; its text is the arguments."""

    type = "function_call"

    def __init__(self, id: str, position: int, call_id: str, name: str) -> None:
        super().__init__(id, position)
        self._call_id = call_id
        self._name = name

    def to_dict(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "type": self.type,
            "status": self._status,
            "call_id": self._call_id,
            "name": self._name,
            "arguments": self.text,
        }

    def _write(self, text: str, logprobs: Sequence[dict[str, Any]]) -> Event:  # noqa: ARG002 - only text has them
        return self._event("function_call_arguments.delta", delta=text)

    def _finish(self) -> Iterator[Event]:
        yield self._event("function_call_arguments.done", name=self._name, arguments=self.text)


def item_id(kind: str, response_id: str, place: str) -> str:
    """Returns an item's id, which also tells its response.

    Args:
        response_id: with its prefix, ``resp_``.
        place: of the item in the response.
    """
    return f"{ID_PREFIXES[kind]}_{response_id.removeprefix('resp_')}_{place}"
