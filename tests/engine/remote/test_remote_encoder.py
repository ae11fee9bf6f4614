"""An embedding model of the servers: requests in OpenAI's shape, both formats of vectors, errors as sentences."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest

from engine import Encoder, EngineError, EngineSettings, RemoteEngine, TextRole
from engine.remote import encoder as remote_encoder
from testing.scripted_server import ScriptedServer, refusal


@pytest.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    async with ScriptedServer() as server:
        yield server


def engine_of(server: ScriptedServer) -> RemoteEngine:
    return RemoteEngine(EngineSettings(_env_file=None, remote_url=server.url, encoder="bge"))


def encoder_of(engine: RemoteEngine) -> Encoder:
    assert engine.encoder is not None
    return engine.encoder


def vectors(*rows: Any, tokens: int = 6) -> Any:
    data = [{"index": index, "embedding": row} for index, row in enumerate(rows)]
    return refusal(200, {"data": data[::-1], "usage": {"prompt_tokens": tokens}})


async def test_floats_and_base64_are_the_same(server: ScriptedServer) -> None:
    async with engine_of(server) as engine:
        encoder = encoder_of(engine)
        server.on["/v1/embeddings"] = vectors([1.0, 0.5], [0.25, -2.0])
        floats = await encoder.embed(["a", "b"], role=TextRole.QUERY)
        coded = [base64.b64encode(np.array(row, "<f4").tobytes()).decode() for row in ([1, 0.5], [0.25, -2])]
        server.on["/v1/embeddings"] = vectors(*coded, tokens=7)
        encoded = await encoder.embed(["a", "b"])
    assert floats.vectors.tolist() == encoded.vectors.tolist() == [[1.0, 0.5], [0.25, -2.0]]
    assert (floats.num_tokens, encoded.num_tokens) == ((3, 3), (3, 4))
    info = await encoder.describe()
    assert (info.name, info.dimensions) == ("bge", 2)
    sent = [one.body for one in server.other_requests if one.path == "/v1/embeddings"]
    assert sent[0] == {"model": "bge", "input": ["a", "b"], "encoding_format": "base64"}


async def test_a_vector_shows_the_dimensions(server: ScriptedServer) -> None:
    async with engine_of(server) as engine:
        encoder = encoder_of(engine)
        with pytest.raises(EngineError):
            await encoder.describe()
        server.on["/v1/embeddings"] = vectors([1.0, 2.0, 3.0])
        assert (await encoder.describe()).dimensions == 3
        assert (await encoder.embed([])).vectors.shape == (0, 3)


async def test_many_texts_are_sent_in_several_requests(server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_encoder, "MAX_TEXTS", 2)
    async with engine_of(server) as engine:
        server.on["/v1/embeddings"] = vectors([1.0], [2.0])
        result = await encoder_of(engine).embed(["a", "b", [1, 2], [3]])
        assert result.vectors.shape == (4, 1)
    inputs = [one.body["input"] for one in server.other_requests if one.path == "/v1/embeddings"]
    assert inputs == [["a", "b"], [[1, 2], [3]]]


@pytest.mark.parametrize(
    "answer",
    [
        refusal(200, {"data": []}),
        refusal(200, b"nothing"),
        vectors([1.0], [2.0]),
        vectors("###"),
        vectors([None]),
        refusal(503, {"error": {"message": "loading"}}),
        refusal(400, {"error": {"message": "no such thing"}}),
    ],
)
async def test_a_wrong_answer_is_an_error_with_a_sentence(server: ScriptedServer, answer: Any) -> None:
    async with engine_of(server) as engine:
        server.on["/v1/embeddings"] = answer
        with pytest.raises(EngineError, match=r"model server.*\.$"):
            await encoder_of(engine).embed(["a"])
