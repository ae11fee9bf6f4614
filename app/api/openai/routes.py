"""The routes of ``/v1``: models, chat completions, completions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import JSONResponse

from app.api.deps import Caller as Identified
from app.api.deps import Closing, ServicesDep
from app.api.openai import embeddings, tokens
from app.api.openai.best_of import best_replies, check_best_of
from app.api.openai.errors import OpenAIError, check_fields, to_openai_error
from app.api.openai.prompts import continue_prompts, drop_replies
from app.api.openai.replies import CompletionKind, CompletionResponse, Extras
from app.api.openai.requests import BaseCompletionRequest, ChatCompletionRequest, CompletionRequest
from app.api.openai.responses.routes import router as responses_router
from app.api.openai.served import check_model, fingerprint, model_card, names_of
from app.api.openai.serving import engine_options, respond, sampling_params
from app.api.routing import add_routes
from app.error_format import error_response
from engine import ChatEngine, Delta, EngineError, SamplingParams

router = APIRouter(prefix="/v1", tags=["openai"])

#: Headers for OpenAI's clients, which retry errors of 500 and above by themselves.
_RETRY = {503: {"Retry-After": "1"}, 504: {"x-should-retry": "false"}}


def install_openai(app: FastAPI) -> None:
    """Adds the routes and their error handler."""

    @app.exception_handler(OpenAIError)
    async def openai_error(request: Request, error: OpenAIError) -> JSONResponse:
        return error_response(
            request.url.path,
            error.status,
            error.code,
            error.message,
            param=error.param,
            headers=_RETRY.get(error.status),
        )

    add_routes(app, router)
    add_routes(app, responses_router)
    add_routes(app, embeddings.router)
    add_routes(app, tokens.router)


@router.get("/models")
async def list_models(services: ServicesDep) -> dict[str, Any]:
    """Lists the loaded model under each of its names, and its adapters."""
    info = services.engine.info
    return {"object": "list", "data": [model_card(name, info) for name in (*names_of(info), *info.adapters)]}


@router.get("/models/{model:path}")
async def get_model(model: str, services: ServicesDep) -> dict[str, Any]:
    """Returns the loaded model or an adapter, if ``model`` is one of their names."""
    return model_card(model, services.engine.info)


@router.post("/chat/completions")
async def chat_completions(
    body: ChatCompletionRequest, request: Request, identity: Identified, services: ServicesDep, closing: Closing
) -> Response:
    """Replies to a conversation."""
    engine = services.engine
    headers = check_fields(body, strict=services.settings.strict_fields)
    adapter = check_model(body.model, engine.info)
    params = _sampling(body, engine)
    options = replace(body.chat_options(), adapter=adapter)
    deltas = engine.chat(body.for_engine(), params, options=options, **engine_options(body, identity, services))
    try:
        deltas = best_replies(body, params, services.admission.meter(identity.user_id, deltas, params.num_sequences))
        return await _respond("chat", body, deltas, request, engine, closing, headers, adapter)
    except EngineError as error:
        raise to_openai_error(error, "messages", body.names) from error


@router.post("/completions")
async def completions(
    body: CompletionRequest, request: Request, identity: Identified, services: ServicesDep, closing: Closing
) -> Response:
    """Continues one or several texts, without a chat template."""
    engine = services.engine
    headers = check_fields(body, strict=services.settings.strict_fields)
    adapter = check_model(body.model, engine.info)
    params = _sampling(body, engine)
    try:
        options = {**engine_options(body, identity, services), "adapter": adapter}
        deltas = await continue_prompts(engine, body, params, options)
        deltas = services.admission.meter(identity.user_id, deltas, len(body.prompt) * params.num_sequences)
        deltas = best_replies(body, params, deltas)
        if body.scores_only:
            deltas = drop_replies(deltas)
        return await _respond("text", body, deltas, request, engine, closing, headers, adapter)
    except EngineError as error:
        raise to_openai_error(error, "prompt", body.names) from error


def _sampling(body: BaseCompletionRequest, engine: ChatEngine) -> SamplingParams:
    params = sampling_params(body)
    check_best_of(body, params, engine.default_sampling_params)
    return params


async def _respond(
    kind: CompletionKind,
    body: BaseCompletionRequest,
    deltas: AsyncIterator[Delta],
    request: Request,
    engine: ChatEngine,
    closing: asyncio.Event,
    headers: Mapping[str, str],
    adapter: str | None,
) -> Response:
    def reply_to(first: Delta) -> CompletionResponse:
        info = engine.info
        return CompletionResponse(
            kind,
            adapter or names_of(info)[0],
            body.request_id or first.request_id,
            fingerprint(info, adapter),
            Extras.from_request(body),
        )

    return await respond(request, deltas, reply_to, streams=bool(body.stream), closing=closing, headers=headers)
