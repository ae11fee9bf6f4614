"""Requests of OpenAI's batch format, answered by an engine without a server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from uuid import uuid4

from pydantic import ValidationError

from app.api.errors import describe_in_v1
from app.api.openai.best_of import best_replies, check_best_of
from app.api.openai.errors import OpenAIError, check_fields, invalid_value, to_openai_error
from app.api.openai.prompts import continue_prompts, drop_replies
from app.api.openai.replies import CompletionResponse, Extras
from app.api.openai.requests import BaseCompletionRequest, ChatCompletionRequest, CompletionRequest
from app.api.openai.served import check_model, fingerprint, names_of
from app.api.sse import close
from app.error_format import openai_error
from engine import Caller, ChatEngine, EngineError, EngineOverloadedError, EngineStoppedError

MAX_ID_LENGTH = 512
"""Maximum characters of a ``custom_id``; longer ones are refused."""
CHAT_URL, COMPLETIONS_URL = "/v1/chat/completions", "/v1/completions"
_REQUESTS: Mapping[str, type[ChatCompletionRequest] | type[CompletionRequest]] = {
    CHAT_URL: ChatCompletionRequest,
    COMPLETIONS_URL: CompletionRequest,
}


def read_request(content: dict[str, Any] | None) -> BaseCompletionRequest:
    """Returns the request that a line makes: ``{"custom_id", "method", "url", "body"}``, or the body alone.

    Raises:
        OpenAIError: the line is not a request; says what is wrong, as ``/v1`` does.
    """
    if content is None:
        raise OpenAIError(400, "invalid_input", "The line is not a JSON object.")
    custom_id = content.get("custom_id", "none")
    if not isinstance(custom_id, str) or not 0 < len(custom_id) <= MAX_ID_LENGTH:
        allowed = f"a string of 1 to {MAX_ID_LENGTH} characters"
        raise OpenAIError(400, "invalid_input", f"The field 'custom_id' must be {allowed}.", "custom_id")
    url, body = _target(content)
    if not isinstance(body, dict):
        raise OpenAIError(400, "invalid_input", "The field 'body' must be an object.", "body")
    try:
        request = _REQUESTS[url].model_validate(body)
    except ValidationError as error:
        message, field = describe_in_v1(error.errors())
        raise OpenAIError(400, "invalid_input", message, field) from error
    if request.stream:
        raise OpenAIError(400, "invalid_value", "A file of replies is not streamed. Leave 'stream' out.", "stream")
    return request


def _target(content: dict[str, Any]) -> tuple[str, Any]:
    if "url" in content or "body" in content:
        url = content.get("url")
        if content.get("method", "POST") != "POST":
            raise OpenAIError(400, "invalid_input", "The field 'method' must be \"POST\".", "method")
        if not isinstance(url, str) or url not in _REQUESTS:
            allowed = " or ".join(_REQUESTS)
            raise OpenAIError(400, "invalid_input", f"The field 'url' must be {allowed}.", "url")
        return url, content.get("body")
    body = {name: value for name, value in content.items() if name != "custom_id"}
    if ("messages" in body) is ("prompt" in body):
        raise OpenAIError(
            400, "invalid_input", "A line needs 'messages' or 'prompt', or 'url' and 'body' as OpenAI's batches have."
        )
    return CHAT_URL if "messages" in body else COMPLETIONS_URL, body


async def reply_to(engine: ChatEngine, request: BaseCompletionRequest) -> dict[str, Any]:
    """Returns the body of the response that ``/v1`` would send.

    Raises:
        EngineOverloadedError, EngineStoppedError: the engine takes no request now.
        OpenAIError: the request cannot be served, or the engine failed in it.
    """
    adapter = check_model(request.model, engine.info)
    try:
        params = request.sampling_params()
    except ValueError as error:
        raise invalid_value(error, request.names) from error
    check_best_of(request, params, engine.default_sampling_params)
    caller = Caller("", request.cache_salt) if request.cache_salt else None
    options: dict[str, Any] = {"deadline": request.deadline, "priority": request.priority, "caller": caller}
    if isinstance(request, ChatCompletionRequest):
        chat_options = replace(request.chat_options(), adapter=adapter)
        deltas = engine.chat(request.for_engine(), params, options=chat_options, **options)
        deltas = best_replies(request, params, deltas)
    else:
        assert isinstance(request, CompletionRequest)
        deltas = await continue_prompts(engine, request, params, {**options, "adapter": adapter})
        deltas = best_replies(request, params, deltas)
        if request.scores_only:
            deltas = drop_replies(deltas)
    info = engine.info
    made = CompletionResponse(
        "chat" if isinstance(request, ChatCompletionRequest) else "text",
        adapter or names_of(info)[0],
        request.request_id or uuid4().hex,
        fingerprint(info, adapter),
        Extras.from_request(request),
    )
    try:
        return await made.full(deltas)
    except (EngineOverloadedError, EngineStoppedError):
        raise
    except EngineError as error:
        param = "messages" if isinstance(request, ChatCompletionRequest) else "prompt"
        raise to_openai_error(error, param, request.names) from error
    finally:
        await close(deltas)


def reply_line(custom_id: str, body: dict[str, Any]) -> dict[str, Any]:
    """Returns the line of the output for a reply, in OpenAI's format."""
    response = {"status_code": 200, "request_id": body["id"], "body": body}
    return {"id": f"batch_req_{uuid4().hex}", "custom_id": custom_id, "response": response, "error": None}


def error_line(custom_id: str, error: OpenAIError) -> dict[str, Any]:
    """Returns the line of the output for a request without a reply."""
    request_id = uuid4().hex
    body = {"error": openai_error(error.status, error.code, error.message, error.param)}
    response = {"status_code": error.status, "request_id": request_id, "body": body}
    short = {"code": error.code, "message": error.message}
    return {"id": f"batch_req_{request_id}", "custom_id": custom_id, "response": response, "error": short}


def ignored_fields(request: BaseCompletionRequest) -> str:
    """Returns the request's unknown fields, which have no effect, separated by commas."""
    return next(iter(check_fields(request, strict=False).values()), "")
