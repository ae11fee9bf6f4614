"""vLLM's additional routes: tokenize, detokenize, version and load."""

from __future__ import annotations

from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Response
from pydantic import Discriminator, FailFast, Field, Tag

from app import __version__
from app.api.deps import ServicesDep
from app.api.errors import UNION_TAG
from app.api.openai.chat_options import OPTION_SPELLING
from app.api.openai.errors import OpenAIError, check_fields, to_openai_error
from app.api.openai.fields import REQUEST_FIELDS, Lenient
from app.api.openai.messages import ChatInput
from app.api.openai.served import check_model
from engine import ChatEngine, ContextLengthError, EngineError, UnsupportedParameterError

router = APIRouter(tags=["tokens"])


class _Tokenize(Lenient):
    no_ops = REQUEST_FIELDS

    model: str | None = Field(None, description="Default: the loaded model.")
    return_token_strs: bool | None = Field(None, description="Also return each token as a string of the vocabulary.")


class TokenizeTextRequest(_Tokenize):
    prompt: str
    add_special_tokens: bool | None = Field(
        None, description="False omits the special tokens that the model expects around a text, such as BOS."
    )


class TokenizeChatRequest(_Tokenize, ChatInput):
    pass


class DetokenizeRequest(Lenient):
    unlimited = frozenset({"tokens"})

    model: str | None = Field(None, description="Default: the loaded model.")
    tokens: Annotated[list[Annotated[int, Field(ge=0)]], FailFast()]


_TEXT, _CHAT = f"{UNION_TAG}text", f"{UNION_TAG}chat"
TokenizeRequest = Annotated[
    Annotated[TokenizeTextRequest, Tag(_TEXT)] | Annotated[TokenizeChatRequest, Tag(_CHAT)],
    Discriminator(lambda body: _TEXT if isinstance(body, dict) and "prompt" in body else _CHAT),
]


@router.post("/tokenize")
@router.post("/v1/tokenize")
async def tokenize(body: TokenizeRequest, services: ServicesDep) -> Response:
    """Returns the tokens of a text or a conversation, their number, and the model's context length."""
    engine = services.engine
    headers = check_fields(body, strict=services.settings.strict_fields)
    check_model(body.model, engine.info)
    is_chat = isinstance(body, TokenizeChatRequest)
    param = "messages" if is_chat else "prompt"
    _check_length(body, param, services.settings.max_message_chars)
    try:
        if isinstance(body, TokenizeChatRequest):
            result = await _chat_tokens(engine, body)
        else:
            tokens = await engine.tokenize(body.prompt, add_special_tokens=body.add_special_tokens is not False)
            result = {"count": len(tokens), "tokens": tokens}
        if body.return_token_strs:
            result["token_strs"] = await engine.token_strings(result["tokens"] or ())
    except EngineError as error:
        raise to_openai_error(error, param, OPTION_SPELLING if is_chat else {}) from error
    answer = {"max_model_len": engine.info.max_model_len, "token_strs": None, **result}
    # FastAPI's own encoder would visit each of a million tokens in Python and block the event loop meanwhile.
    return Response(orjson.dumps(answer), headers=headers, media_type="application/json")


def _check_length(body: TokenizeTextRequest | TokenizeChatRequest, param: str, limit: int) -> None:
    """Limits the text's length: the tokenizer processes one text at a time, and new replies wait for it."""
    length = len(body.prompt) if isinstance(body, TokenizeTextRequest) else body.num_characters
    if length > limit:
        raise OpenAIError(
            400,
            "invalid_value",
            f"{param} has {length} characters; the maximum is {limit} (APP_MAX_MESSAGE_CHARS of this server). "
            "Send it in pieces.",
            param,
        )


async def _chat_tokens(engine: ChatEngine, body: TokenizeChatRequest) -> dict[str, Any]:
    """Returns the tokens and their number; only the number if a remote model server does not return tokens."""
    messages, options = body.for_engine(), body.chat_options()
    try:
        tokens = await engine.tokenize(messages, options=options)
    except UnsupportedParameterError:
        try:
            return {"count": (await engine.prepare(messages, options=options)).num_prompt_tokens, "tokens": None}
        except ContextLengthError as error:
            return {"count": error.prompt_tokens, "tokens": None}
    return {"count": len(tokens), "tokens": tokens}


@router.post("/detokenize")
async def detokenize(body: DetokenizeRequest, services: ServicesDep, response: Response) -> dict[str, str]:
    """Returns the text of token ids, including special tokens."""
    response.headers.update(check_fields(body, strict=services.settings.strict_fields))
    check_model(body.model, services.engine.info)
    try:
        return {"prompt": await services.engine.detokenize(body.tokens)}
    except EngineError as error:
        raise to_openai_error(error, "tokens") from error


@router.get("/version")
async def version() -> dict[str, str]:
    """Returns Deskmate's version."""
    return {"version": __version__}


@router.get("/load")
async def load(services: ServicesDep) -> dict[str, int]:
    """Returns the number of requests in the engine, running and waiting."""
    stats = services.engine.stats()
    return {"server_load": stats.num_requests_running + stats.num_requests_waiting}
