"""Server-sent events whose data is JSON, as tests read them from the application's streams."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from engine.remote.sse import EventParser, ServerSentEvent, read_events


@dataclass
class JsonEvent:
    """One event as a browser would see it."""

    name: str
    data: dict[str, Any]
    id: str


def parse_json_events(stream: bytes) -> list[JsonEvent]:
    """Returns the events of a stream; the ``[DONE]`` at the end of an OpenAI stream is none."""
    return [_decoded(event) for event in EventParser().feed(stream) if event.data != "[DONE]"]


async def read_json_events(chunks: AsyncIterator[bytes]) -> AsyncGenerator[JsonEvent]:
    """Yields the events of a stream as they arrive."""
    async with aclosing(read_events(chunks)) as events:
        async for event in events:
            yield _decoded(event)


def _decoded(event: ServerSentEvent) -> JsonEvent:
    return JsonEvent(event.name, json.loads(event.data), event.id)
