"""The route of ``/v1/responses``."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from app.api.deps import Caller as Identified
from app.api.deps import Closing, ServicesDep
from app.api.openai.errors import check_fields, to_openai_error
from app.api.openai.responses.builder import ResponseBuilder, read_all
from app.api.openai.responses.conversation import check_outputs, to_messages
from app.api.openai.responses.output import Event
from app.api.openai.responses.requests import ResponseRequest
from app.api.openai.served import check_model, names_of
from app.api.openai.serving import (
    CLIENT_LEFT,
    STOPPING,
    chain,
    engine_options,
    next_delta,
    sampling_params,
    unless_client_leaves,
)
from app.api.sse import EventStream, close, sse_event
from app.domain.ids import new_id
from engine import ChatEngine, ChatMessage, Delta, EngineError, SamplingParams, Truncation

router = APIRouter(prefix="/v1/responses", tags=["openai"])


@router.post("")
async def create_response(
    body: ResponseRequest, request: Request, identity: Identified, services: ServicesDep, closing: Closing
) -> Response:
    """Replies to a text or to the items of a conversation."""
    engine = services.engine
    headers = check_fields(body, strict=services.settings.strict_fields)
    adapter = check_model(body.model, engine.info)
    params = sampling_params(body)
    check_outputs(body.input)
    messages = to_messages(body.instructions, body.input)
    options = engine_options(body, identity, services)
    generated = _generate(engine, body, messages, params, adapter, options)
    deltas = services.admission.meter(identity.user_id, generated)
    streaming = False
    try:
        first = await unless_client_leaves(request, next_delta(deltas))
        if first is None:
            return Response(status_code=CLIENT_LEFT)
        builder = ResponseBuilder(
            f"resp_{new_id().replace('-', '')}",
            _fields(body, engine, params, adapter),
            with_logprobs=body.wants_logprobs,
        )
        everything = chain(first, deltas)
        if body.stream:
            streaming = True
            events = _events(builder, everything)
            stream = EventStream(
                events,
                closing=closing,
                final_event=lambda: _encode(builder.error(to_openai_error(STOPPING))),
                source=deltas,
            )
            stream.headers.update(headers)
            return stream
        read = await unless_client_leaves(request, _read(builder, everything))
        return Response(status_code=CLIENT_LEFT) if read is None else JSONResponse(read, headers=headers)
    except EngineError as error:
        raise to_openai_error(error, "input", body.names) from error
    finally:
        if not streaming:
            await close(deltas)


async def _generate(
    engine: ChatEngine,
    body: ResponseRequest,
    messages: list[ChatMessage],
    params: SamplingParams,
    adapter: str | None,
    options: dict[str, Any],
) -> AsyncGenerator[Delta]:
    caller = options.pop("caller")
    chat_options = replace(body.chat_options(), adapter=adapter)
    truncation = Truncation() if body.truncation == "auto" else None
    prepared = await engine.prepare(messages, params, caller=caller, truncation=truncation, options=chat_options)
    deltas = engine.stream(prepared, **options)
    try:
        async for delta in deltas:
            yield delta
    finally:
        await close(deltas)


async def _read(builder: ResponseBuilder, deltas: AsyncIterator[Delta]) -> dict[str, Any]:
    await read_all(builder, deltas)
    return builder.to_dict()


async def _events(builder: ResponseBuilder, deltas: AsyncIterator[Delta]) -> AsyncGenerator[bytes]:
    """Yields the response as server-sent events. An error on the way ends it with ``response.failed`` and ``error``."""
    try:
        for event in builder.begin():
            yield _encode(event)
        async for delta in deltas:
            for event in builder.feed(delta):
                yield _encode(event)
        yield _encode(builder.end())
    except EngineError as error:
        for event in builder.fail(to_openai_error(error)):
            yield _encode(event)
    finally:
        await close(deltas)


def _encode(event: Event) -> bytes:
    if "response" in event:  # it repeats the request's schemas, which may hold larger numbers than orjson writes
        return sse_event(json.dumps(event, ensure_ascii=False), event=event["type"])
    return sse_event(event, event=event["type"])


def _fields(body: ResponseRequest, engine: ChatEngine, params: SamplingParams, adapter: str | None) -> dict[str, Any]:
    """Returns the response's fields that are known before the reply."""
    resolved = params.with_defaults(engine.default_sampling_params)
    return {
        **body.echo(),
        "model": adapter or names_of(engine.info)[0],
        "temperature": resolved.temperature,
        "top_p": resolved.top_p,
        "previous_response_id": None,
        "store": False,
    }
