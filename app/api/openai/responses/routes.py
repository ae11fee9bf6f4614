"""The routes of ``/v1/responses``."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse

from app.api.deps import Caller as Identified
from app.api.deps import Closing, ServicesDep, UserId
from app.api.openai.errors import OpenAIError, check_fields, to_openai_error
from app.api.openai.responses.builder import ResponseBuilder
from app.api.openai.responses.conversation import calls_of, check_outputs, to_messages
from app.api.openai.responses.reply import ResponseReply
from app.api.openai.responses.requests import ResponseRequest
from app.api.openai.responses.stored import check_length, continued_items, input_with_ids, resolved_items
from app.api.openai.served import check_model, names_of
from app.api.openai.serving import engine_options, respond, sampling_params
from app.api.sse import close
from app.domain.ids import new_id
from app.domain.responses import response_id_of
from app.errors import LimitReached
from app.services.response_writer import ResponseWriter
from engine import Caller, ChatEngine, ChatMessage, ChatOptions, Delta, EngineError, SamplingParams, Truncation

router = APIRouter(prefix="/v1/responses", tags=["openai"])


@router.post("")
async def create_response(
    body: ResponseRequest, request: Request, identity: Identified, services: ServicesDep, closing: Closing
) -> Response:
    """Replies to a text or to the items of a conversation, and stores the response unless `store` is false."""
    engine, user_id = services.engine, identity.user_id
    headers = check_fields(body, strict=services.settings.strict_fields)
    adapter = check_model(body.model, engine.info)
    params = sampling_params(body)
    options = engine_options(body, identity, services)
    if body.stores:
        await _require_room(services.response_writer, user_id)
    before = await continued_items(services.responses, user_id, body.previous_response_id)
    items = await resolved_items(services.responses, user_id, body.input)
    check_outputs(items, calls_of(before))
    check_length([*before, *items])
    messages = to_messages(body.instructions, [*before, *items])
    builder = ResponseBuilder(
        response_id_of(new_id()), _fields(body, engine, params, adapter), with_logprobs=body.wants_logprobs
    )

    async def store() -> None:
        if body.stores:
            await services.response_writer.store(user_id, input_with_ids(builder.id, items), builder.to_dict())

    chat_options = replace(body.chat_options(), adapter=adapter)
    truncates = body.truncation == "auto"
    generate = partial(_generate_truncated, engine) if truncates else engine.chat
    deltas = services.admission.meter(user_id, generate(messages, params, options=chat_options, **options))
    reply = ResponseReply(builder, store)
    try:
        return await respond(
            request, deltas, lambda _: reply, streams=bool(body.stream), closing=closing, headers=headers
        )
    except EngineError as error:
        raise to_openai_error(error, "input", body.names) from error


@router.get("/{response_id}")
async def get_response(
    response_id: str, user_id: UserId, services: ServicesDep, stream: Annotated[bool, Query()] = False
) -> JSONResponse:
    """Returns a stored response of the caller."""
    if stream:
        raise OpenAIError(
            400,
            "invalid_value",
            "Only a response in the background can be streamed again. Leave 'stream' out.",
            "stream",
        )
    return JSONResponse((await services.responses.get(user_id, response_id)).body)


@router.delete("/{response_id}")
async def delete_response(response_id: str, user_id: UserId, services: ServicesDep) -> dict[str, Any]:
    """Deletes a stored response of the caller, permanently. Responses that continue it stay."""
    await services.responses.delete(user_id, response_id)
    return {"id": response_id, "object": "response", "deleted": True}


@router.get("/{response_id}/input_items")
async def list_input_items(
    response_id: str,
    user_id: UserId,
    services: ServicesDep,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    order: Literal["asc", "desc"] = "desc",
    after: str | None = None,
) -> JSONResponse:
    """Lists the input items of a stored response, without those of the responses that it continues."""
    items = list((await services.responses.get(user_id, response_id)).input)
    if order == "desc":
        items.reverse()
    if after is not None:
        places = [index for index, item in enumerate(items) if item["id"] == after]
        if not places:
            raise OpenAIError(400, "invalid_value", "The parameter 'after' is not the id of one of the items.", "after")
        items = items[places[0] + 1 :]
    page = items[:limit]
    return JSONResponse(
        {
            "object": "list",
            "data": page,
            "first_id": page[0]["id"] if page else None,
            "last_id": page[-1]["id"] if page else None,
            "has_more": len(items) > limit,
        }
    )


async def _require_room(writer: ResponseWriter, user_id: str) -> None:
    try:
        await writer.require_room(user_id)
    except LimitReached as error:
        message = f'{error.message} To get a response without storing it, send "store": false.'
        raise OpenAIError(error.status, error.code, message, "store") from error


async def _generate_truncated(
    engine: ChatEngine,
    messages: list[ChatMessage],
    params: SamplingParams,
    *,
    options: ChatOptions,
    deadline: float | None,
    priority: int,
    caller: Caller | None,
) -> AsyncGenerator[Delta]:
    """Streams a reply as the engine's ``chat`` does, without the oldest turns of a conversation that is too long."""
    prepared = await engine.prepare(messages, params, caller=caller, truncation=Truncation(), options=options)
    deltas = engine.stream(prepared, deadline=deadline, priority=priority)
    try:
        async for delta in deltas:
            yield delta
    finally:
        await close(deltas)


def _fields(body: ResponseRequest, engine: ChatEngine, params: SamplingParams, adapter: str | None) -> dict[str, Any]:
    """Returns the response's fields that are known before the reply."""
    resolved = params.with_defaults(engine.default_sampling_params)
    return {
        **body.echo(),
        "model": adapter or names_of(engine.info)[0],
        "temperature": resolved.temperature,
        "top_p": resolved.top_p,
    }
