"""``/v1/embeddings``: the vectors of texts, by the encoder of ``ENGINE_ENCODER``."""

from __future__ import annotations

import base64
from typing import Annotated, Any, Literal

import numpy as np
import orjson
from fastapi import APIRouter, Request, Response
from numpy.typing import NDArray
from pydantic import Field, PlainValidator

from app.api.client_left import CLIENT_LEFT, unless_client_leaves
from app.api.deps import Caller as Identified
from app.api.deps import ServicesDep
from app.api.openai.errors import OpenAIError, check_fields, to_openai_error
from app.api.openai.fields import REQUEST_FIELDS, Lenient, checked_text, unsupported
from app.api.openai.requests import Whole
from app.knowledge.vectors import unit
from engine import Embeddings, EncoderInfo, EngineError, TextRole

router = APIRouter(prefix="/v1", tags=["openai"])

MAX_INPUTS = 2048
"""Maximum texts of one request, as OpenAI has it; more are refused."""

Input = str | list[int]


def _inputs(value: object) -> list[Input]:
    """Parses one text, a string or token ids, or a list of texts."""
    inputs: list[Any] = [value] if isinstance(value, str) or _is_token_ids(value) else _list_of_inputs(value)
    for index, one in enumerate(inputs):
        param = f"input[{index}]" if isinstance(value, list) else "input"
        if one == "":
            raise unsupported(param, "The field '{param}' is empty. Send at least one word.")
        if isinstance(one, str):
            checked_text(param, one)
        elif not _is_token_ids(one):
            raise unsupported(param, "The field '{param}' must be a string or a list of token ids.")
    return inputs


def _list_of_inputs(value: object) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise unsupported("input", "The field '{param}' must be a string, token ids, or a list of such texts.")
    if len(value) > MAX_INPUTS:
        raise unsupported("input", f"The field '{{param}}' has {len(value)} texts; the maximum is {MAX_INPUTS}.")
    return value


def _is_token_ids(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(type(token) is int for token in value)


class EmbeddingRequest(Lenient):
    no_ops = REQUEST_FIELDS
    unlimited = frozenset({"input"})

    input: Annotated[
        list[Input], PlainValidator(_inputs, json_schema_input_type=str | list[str] | list[int] | list[list[int]])
    ] = Field(description="A string or token ids, or several such texts, up to 2,048.")
    model: str | None = Field(None, description="Default: the encoder.")
    encoding_format: Literal["float", "base64"] | None = Field(
        None, description="base64: the float32 numbers of each vector, little-endian."
    )
    dimensions: Whole | None = Field(
        None, description="Cuts each vector, where the encoder's config.json says that its vectors may be cut."
    )
    input_type: Literal["query", "document", "passage"] | None = Field(
        None, description="Puts the encoder's prompt for queries or documents before each text, if it has one."
    )

    @property
    def role(self) -> TextRole | None:
        if self.input_type is None:
            return None
        return TextRole.QUERY if self.input_type == "query" else TextRole.DOCUMENT


@router.post("/embeddings")
async def create_embeddings(
    body: EmbeddingRequest, request: Request, identity: Identified, services: ServicesDep
) -> Response:
    """Returns the vector of each text."""
    headers = check_fields(body, strict=services.settings.strict_fields)
    encoder = services.engine.encoder
    if encoder is None:
        raise OpenAIError(
            404,
            "model_not_found",
            "This server has no encoder, which turns texts into vectors. An administrator can set ENGINE_ENCODER to "
            "one, such as sentence-transformers/all-MiniLM-L6-v2.",
            "model",
        )
    _check_lengths(body.input, services.settings.max_message_chars)
    try:
        info = await encoder.describe()
        _check_model(body.model, info)
        dimensions = _check_dimensions(body.dimensions, info)
        async with services.admission.admit(identity.user_id, 0):
            pass
        result = await unless_client_leaves(request, encoder.embed(body.input, role=body.role))
    except EngineError as error:
        raise to_openai_error(error, "input") from error
    if result is None:
        return Response(status_code=CLIENT_LEFT)
    services.admission.record_tokens(identity.user_id, sum(result.num_tokens))
    vectors = _cut(result.vectors, dimensions)
    answer = {
        "object": "list",
        "data": [
            {"object": "embedding", "index": index, "embedding": _encoded(vector, body.encoding_format)}
            for index, vector in enumerate(vectors)
        ],
        "model": info.name,
        "usage": _usage(result),
    }
    content = orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY)
    return Response(content, headers=headers, media_type="application/json")


def _check_lengths(inputs: list[Input], limit: int) -> None:
    """Limits each text's length, since the tokenizer processes one text at a time."""
    for index, text in enumerate(inputs):
        if len(text) > limit:
            raise OpenAIError(
                400,
                "invalid_value",
                f"input[{index}] has {len(text)} {'characters' if isinstance(text, str) else 'tokens'}; the maximum is "
                f"{limit} (APP_MAX_MESSAGE_CHARS of this server). Send it in pieces.",
                "input",
            )


def _check_model(name: str | None, info: EncoderInfo) -> None:
    if name is not None and name != info.name:
        raise OpenAIError(
            404,
            "model_not_found",
            f"The model '{name[:200]}' does not exist or makes no vectors. The encoder is '{info.name}'.",
            "model",
        )


def _check_dimensions(asked: int | None, info: EncoderInfo) -> int:
    try:
        return info.check_dimensions(asked)
    except ValueError as error:
        raise OpenAIError(400, "invalid_value", str(error), "dimensions") from error


def _cut(vectors: NDArray[np.float32], dimensions: int) -> NDArray[np.float32]:
    """Cuts vectors, and makes their length 1 again as OpenAI does."""
    if vectors.shape[1] == dimensions:
        return vectors
    return unit(vectors[:, :dimensions])


def _encoded(vector: NDArray[np.float32], encoding_format: str | None) -> NDArray[np.float32] | str:
    if encoding_format != "base64":
        return vector
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()


def _usage(result: Embeddings) -> dict[str, int]:
    """Returns OpenAI's usage, and how many texts were longer than the encoder reads."""
    tokens = sum(result.num_tokens)
    return {"prompt_tokens": tokens, "total_tokens": tokens, "truncated_inputs": len(result.truncated)}
