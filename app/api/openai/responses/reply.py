"""Sends a response, whole or as server-sent events, once it is stored."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Any

from app.api.openai.errors import OpenAIError, to_openai_error
from app.api.openai.responses.builder import ResponseBuilder
from app.api.openai.responses.output import Event
from app.api.sse import close, sse_event
from app.errors import AppError
from engine import Delta, EngineError


class ResponseReply:
    """One response to a client.

    Args:
        builder: makes the response of the engine's deltas.
        store: stores it where that is asked for. Called before its end is sent, so that a client that has read the
            end finds the response.
    """

    def __init__(self, builder: ResponseBuilder, store: Callable[[], Awaitable[None]]) -> None:
        self._builder = builder
        self._store = store

    async def full(self, deltas: AsyncIterator[Delta]) -> dict[str, Any]:
        """Reads all deltas and returns the whole response.

        Raises:
            EngineError: raised by the engine on the way.
        """
        async for delta in deltas:
            for _event in self._builder.feed(delta):
                pass
        await self._store()
        return self._builder.to_dict()

    async def stream(self, deltas: AsyncIterator[Delta]) -> AsyncGenerator[bytes]:
        """Yields server-sent events. An error on the way ends them with ``response.failed`` and ``error``."""
        builder = self._builder
        try:
            for event in builder.begin():
                yield _encode(event)
            async for delta in deltas:
                for event in builder.feed(delta):
                    yield _encode(event)
            await self._store()
            yield _encode(builder.end())
        except (EngineError, AppError) as error:
            for event in builder.fail(_as_openai_error(error)):
                yield _encode(event)
        finally:
            await close(deltas)

    def error_event(self, error: EngineError) -> bytes:
        """Encodes an error that ends the stream."""
        return _encode(self._builder.error(to_openai_error(error)))


def _as_openai_error(error: EngineError | AppError) -> OpenAIError:
    if isinstance(error, EngineError):
        return to_openai_error(error)
    return OpenAIError(error.status, error.code, error.message)


def _encode(event: Event) -> bytes:
    if "response" in event:  # it repeats the request's schemas, which may hold larger numbers than orjson writes
        return sse_event(json.dumps(event, ensure_ascii=False), event=event["type"])
    return sse_event(event, event=event["type"])
