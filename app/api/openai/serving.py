"""Shared by the routes of ``/v1``: a request's options for the engine, and sending its reply."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from typing import Any, Final, Protocol

from fastapi import Request, Response
from fastapi.responses import JSONResponse

from app.api.client_left import CLIENT_LEFT, unless_client_leaves
from app.api.openai.errors import OpenAIError, invalid_value
from app.api.openai.requests import GenerationRequest
from app.api.sse import EventStream, close
from app.auth.identity import Identity
from app.domain.roles import UserRole
from app.services.container import Services
from app.turns.admission import caller_of
from engine import Delta, EngineError, EngineStoppedError, SamplingParams

STOPPING: Final = EngineStoppedError("The server is shutting down, and the reply was cut off.")


def engine_options(body: GenerationRequest, identity: Identity, services: Services) -> dict[str, Any]:
    """Returns the engine's options for the request: deadline, priority and caller.

    Raises:
        OpenAIError: the caller may not use this priority.
    """
    if body.priority < 0 and identity.role is not UserRole.ADMIN:
        raise OpenAIError(
            403,
            "priority_not_allowed",
            f"Only admins may use a priority below 0, which overtakes other users (got {body.priority}). "
            "Send 0 or more.",
            "priority",
        )
    caller = caller_of(identity.user_id, accounts=services.settings.accounts, cache_salt=body.cache_salt or "")
    return {"deadline": body.deadline, "priority": body.priority, "caller": caller}


def sampling_params(body: GenerationRequest) -> SamplingParams:
    """Returns the engine's sampling parameters for the request.

    Raises:
        OpenAIError: a value is out of range.
    """
    try:
        return body.sampling_params()
    except ValueError as error:
        raise invalid_value(error, body.names) from error


class Reply(Protocol):
    """The reply to one request, in the format of its route."""

    async def full(self, deltas: AsyncIterator[Delta]) -> dict[str, Any]:
        """Reads all deltas and returns the whole reply."""

    def stream(self, deltas: AsyncIterator[Delta]) -> AsyncGenerator[bytes]:
        """Yields the reply as server-sent events; an error on the way is one of them."""

    def error_event(self, error: EngineError) -> bytes:
        """Encodes an error as the last event of a stream."""


async def respond(
    request: Request,
    deltas: AsyncIterator[Delta],
    reply_to: Callable[[Delta], Reply],
    *,
    streams: bool,
    closing: asyncio.Event,
    headers: Mapping[str, str],
) -> Response:
    """Returns the response, whole or streamed. However it ends, closes ``deltas``, which aborts the engine's request.

    Args:
        reply_to: makes the reply that begins with this delta.
        closing: set when the server shuts down.

    Raises:
        EngineError: raised by the engine before the response has begun.
    """
    streaming = False
    try:
        # The engine raises refusals instead of the first delta: waiting for it here gives them their own status.
        first = await unless_client_leaves(request, _next_delta(deltas))
        if first is None:
            return Response(status_code=CLIENT_LEFT)
        reply = reply_to(first)
        everything = _chain(first, deltas)
        if streams:
            streaming = True
            stream = EventStream(
                reply.stream(everything),
                closing=closing,
                final_event=lambda: reply.error_event(STOPPING),
                source=deltas,
            )
            stream.headers.update(headers)
            return stream
        whole = await unless_client_leaves(request, reply.full(everything))
        return Response(status_code=CLIENT_LEFT) if whole is None else JSONResponse(whole, headers=dict(headers))
    finally:
        if not streaming:
            await close(deltas)


async def _next_delta(deltas: AsyncIterator[Delta]) -> Delta:
    """Waits for the next delta, as a coroutine that a task can run."""
    return await anext(deltas)


async def _chain(first: Delta, rest: AsyncIterator[Delta]) -> AsyncGenerator[Delta]:
    """Yields a delta that was read already, and the others; closes ``rest`` at the end."""
    try:
        yield first
        async for delta in rest:
            yield delta
    finally:
        await close(rest)
