"""``/v1``: models, chat completions, completions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from typing import Any, TypeVar

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import JSONResponse

from app.api.deps import Closing, ServicesDep, UserId
from app.api.openai.errors import OpenAIError, invalid_value, translated
from app.api.openai.replies import Extras, Kind, Reply, error_event
from app.api.openai.requests import ChatRequest, CommonRequest, TextRequest, TokenizeRequest
from app.api.sse import EventStream, close
from app.error_shapes import error_response
from engine import ChatEngine, ContextLengthError, Delta, EngineError, EngineStoppedError, SamplingParams

router = APIRouter(prefix="/v1", tags=["openai"])

#: What other servers answer for a client that left before its reply: nobody reads it, but logs show it.
CLIENT_LEFT = 499

#: When this process began: the nearest thing to a date that a folder of weights has.
STARTED = int(time.time())

#: What OpenAI's clients, which try errors of 500 and above again by themselves, should know before they do.
_RETRY = {503: {"Retry-After": "1"}, 504: {"x-should-retry": "false"}}

_STOPPING = EngineStoppedError("The server is shutting down, and the reply was cut off.")

T = TypeVar("T")


def install_openai(app: FastAPI) -> None:
    """Add the routes and the shape of their errors."""

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

    app.include_router(router)


@router.get("/models")
async def list_models(services: ServicesDep) -> dict[str, Any]:
    """The one model that is loaded."""
    return {"object": "list", "data": [_model_card(services.engine)]}


@router.get("/models/{model:path}")
async def get_model(model: str, services: ServicesDep) -> dict[str, Any]:
    """The loaded model, when that is its name."""
    _check_model(model, services.engine)
    return _model_card(services.engine)


@router.post("/chat/completions")
async def chat_completions(
    body: ChatRequest, request: Request, user_id: UserId, services: ServicesDep, closing: Closing
) -> Response:
    """Reply to a conversation."""
    engine = services.engine
    _check_model(body.model, engine)
    deltas = engine.chat(body.for_engine(), _sampling(body), deadline=body.deadline, priority=body.priority)
    try:
        deltas = services.admission.metered(user_id, deltas)
        return await _respond("chat", body, deltas, request, engine, closing)
    except EngineError as error:
        raise translated(error, "messages") from error


@router.post("/completions")
async def completions(
    body: TextRequest, request: Request, user_id: UserId, services: ServicesDep, closing: Closing
) -> Response:
    """Continue a text, without a chat template."""
    engine = services.engine
    _check_model(body.model, engine)
    deltas = engine.complete(body.single_prompt(), _sampling(body), deadline=body.deadline, priority=body.priority)
    try:
        deltas = services.admission.metered(user_id, deltas)
        return await _respond("text", body, deltas, request, engine, closing)
    except EngineError as error:
        raise translated(error, "prompt") from error


@router.post("/tokenize")
async def count_tokens(body: TokenizeRequest, services: ServicesDep) -> dict[str, int]:
    """How many tokens a conversation is for the model, and how many it reads at most, its reply included."""
    engine = services.engine
    _check_model(body.model, engine)
    try:
        count = await engine.check_chat(body.for_engine())
    except ContextLengthError as error:
        count = error.prompt_tokens
    except EngineError as error:
        raise translated(error, "messages") from error
    return {"count": count, "max_model_len": engine.info.max_model_len}


def _sampling(body: CommonRequest) -> SamplingParams:
    try:
        return body.sampling_params()
    except ValueError as error:
        raise invalid_value(error) from error


async def _respond(
    kind: Kind,
    body: CommonRequest,
    deltas: AsyncIterator[Delta],
    request: Request,
    engine: ChatEngine,
    closing: asyncio.Event,
) -> Response:
    """Whole or streamed. However it ends, the engine's generator is closed, which aborts the request."""
    streaming = False
    try:
        # The engine refuses with the first delta: waiting for it here gives a refusal its own status.
        first = await _unless_client_leaves(request, _next(deltas))
        if first is None:
            return Response(status_code=CLIENT_LEFT)
        reply = Reply(kind, engine.info.name, first.request_id, Extras.asked_by(body))
        everything = _chain(first, deltas)
        if body.stream:
            streaming = True
            chunks = reply.chunks(everything, include_usage=body.include_usage)
            return EventStream(chunks, closing=closing, farewell=error_event(_STOPPING), source=deltas)
        whole = await _unless_client_leaves(request, reply.whole(everything))
        return Response(status_code=CLIENT_LEFT) if whole is None else JSONResponse(whole)
    finally:
        if not streaming:
            await close(deltas)


async def _next(deltas: AsyncIterator[Delta]) -> Delta:
    return await anext(deltas)


async def _chain(first: Delta, rest: AsyncIterator[Delta]) -> AsyncGenerator[Delta]:
    try:
        yield first
        async for delta in rest:
            yield delta
    finally:
        await close(rest)


async def _unless_client_leaves(request: Request, work: Coroutine[Any, Any, T]) -> T | None:
    """The work's result, or None when the client hung up first; the work is cancelled then."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    working, leaving = asyncio.create_task(work), asyncio.create_task(gone())
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


def _check_model(name: str, engine: ChatEngine) -> None:
    if name != engine.info.name:
        raise OpenAIError(
            404,
            "model_not_found",
            f"The model '{name[:200]}' does not exist here. '{engine.info.name}' is loaded.",
            "model",
        )


def _model_card(engine: ChatEngine) -> dict[str, Any]:
    info = engine.info
    return {
        "id": info.name,
        "object": "model",
        "created": STARTED,
        "owned_by": "deskmate",
        "max_model_len": info.max_model_len,
    }
