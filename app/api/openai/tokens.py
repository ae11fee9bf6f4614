"""What vLLM has beside OpenAI's API, as it spells it: tokens of a text, the version, and the load."""

from __future__ import annotations

from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Response
from pydantic import Discriminator, Field, Tag

from app import __version__
from app.api.deps import ServicesDep
from app.api.errors import UNION_TAG
from app.api.openai.errors import OpenAIError, check_fields, to_openai_error
from app.api.openai.fields import REQUEST_FIELDS, Lenient
from app.api.openai.messages import ChatInput
from app.api.openai.served import check_model
from engine import ChatEngine, ContextLengthError, EngineError, UnsupportedParameterError

router = APIRouter(tags=["tokens"])


class _Tokenize(Lenient):
    no_ops = REQUEST_FIELDS

    model: str | None = Field(None, description="Default: the one that is loaded.")
    return_token_strs: bool | None = Field(None, description="Also tell each token as the vocabulary spells it.")


class TokenizeTextRequest(_Tokenize):
    prompt: str
    add_special_tokens: bool | None = Field(
        None, description="False: without the special tokens that the model expects around a text, such as BOS."
    )


class TokenizeChatRequest(_Tokenize, ChatInput):
    pass


class DetokenizeRequest(Lenient):
    model: str | None = Field(None, description="Default: the one that is loaded.")
    tokens: list[Annotated[int, Field(ge=0)]]


_TEXT, _CHAT = f"{UNION_TAG}text", f"{UNION_TAG}chat"
TokenizeRequest = Annotated[
    Annotated[TokenizeTextRequest, Tag(_TEXT)] | Annotated[TokenizeChatRequest, Tag(_CHAT)],
    Discriminator(lambda body: _TEXT if isinstance(body, dict) and "prompt" in body else _CHAT),
]


@router.post("/tokenize")
@router.post("/v1/tokenize")
async def tokenize(body: TokenizeRequest, services: ServicesDep) -> Response:
    """The tokens of a text or a conversation, how many they are, and how many the model reads, its reply included."""
    engine = services.engine
    headers = check_fields(body, strict=services.settings.strict_fields)
    check_model(body.model, engine.info)
    is_chat = isinstance(body, TokenizeChatRequest)
    param = "messages" if is_chat else "prompt"
    _check_length(body, param, services.settings.max_message_chars)
    try:
        if isinstance(body, TokenizeChatRequest):
            told = await _chat_tokens(engine, body)
        else:
            tokens = await engine.tokenize(body.prompt, add_special_tokens=body.add_special_tokens is not False)
            told = {"count": len(tokens), "tokens": tokens}
        if body.return_token_strs:
            told["token_strs"] = await engine.token_strings(told["tokens"] or ())
    except EngineError as error:
        raise to_openai_error(error, param) from error
    answer = {"max_model_len": engine.info.max_model_len, "token_strs": None, **told}
    # FastAPI's own encoder would look at each of a million tokens in Python, and nobody else were served meanwhile.
    return Response(orjson.dumps(answer), headers=headers, media_type="application/json")


def _check_length(body: TokenizeTextRequest | TokenizeChatRequest, param: str, limit: int) -> None:
    """The tokenizer reads one text at a time, and replies wait for it meanwhile."""
    texts = [body.prompt] if isinstance(body, TokenizeTextRequest) else [one["content"] for one in body.for_engine()]
    length = sum(map(len, texts))
    if length > limit:
        raise OpenAIError(
            400,
            "invalid_value",
            f"{param} is {length} characters long; at most {limit}, the APP_MAX_MESSAGE_CHARS of this server, are read "
            "at once. Send it in pieces.",
            param,
        )


async def _chat_tokens(engine: ChatEngine, body: TokenizeChatRequest) -> dict[str, Any]:
    """Of a server elsewhere that does not tell the tokens, their number."""
    messages = body.for_engine()
    try:
        tokens = await engine.tokenize(messages)
    except UnsupportedParameterError:
        try:
            return {"count": await engine.check_chat(messages), "tokens": None}
        except ContextLengthError as error:
            return {"count": error.prompt_tokens, "tokens": None}
    return {"count": len(tokens), "tokens": tokens}


@router.post("/detokenize")
async def detokenize(body: DetokenizeRequest, services: ServicesDep, response: Response) -> dict[str, str]:
    """The text of token ids, special tokens included."""
    response.headers.update(check_fields(body, strict=services.settings.strict_fields))
    check_model(body.model, services.engine.info)
    try:
        return {"prompt": await services.engine.detokenize(body.tokens)}
    except EngineError as error:
        raise to_openai_error(error, "tokens") from error


@router.get("/version")
async def version() -> dict[str, str]:
    """Deskmate's version."""
    return {"version": __version__}


@router.get("/load")
async def load(services: ServicesDep) -> dict[str, int]:
    """How many requests the engine has, running and waiting."""
    stats = services.engine.stats()
    return {"server_load": stats.num_requests_running + stats.num_requests_waiting}
