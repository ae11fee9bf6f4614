"""``/v1/embeddings`` with the official client."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import numpy as np
import openai
import pytest
import pytest_asyncio

from app.api.openai import embeddings
from app.auth.rate_limits import too_many_requests
from app.turns.admission import UnlimitedAdmission
from engine import EngineOverloadedError, EngineStoppedError, TextRole
from testing.fake_encoder import FakeEncoder
from tests.app.live_server import RunningApp

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture
def encoder(live: RunningApp) -> FakeEncoder:
    live.engine.fake_encoder = FakeEncoder(8, max_tokens=4)
    return live.engine.fake_encoder


@pytest_asyncio.fixture(loop_scope="module")
async def client(live: RunningApp) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{live.url}/v1", api_key="unused", max_retries=0) as client:
        yield client


async def post(live: RunningApp, **body: Any) -> tuple[int, Any]:
    headers = {"Content-Type": "application/json"}  # json.dumps also writes half of a surrogate pair
    answer = await live.http.post("/v1/embeddings", content=json.dumps(body), headers=headers)
    return answer.status_code, answer.json()


async def test_the_client_gets_the_vectors(client: openai.AsyncOpenAI, encoder: FakeEncoder) -> None:
    texts = ["the quick fox", "one two three four five"]
    expected = (await encoder.embed(texts)).vectors
    for encoding in (openai.omit, "float", "base64"):  # by default the client asks for base64 and decodes it
        result = await client.embeddings.create(
            model="fake-encoder",
            input=texts,
            user="u",
            encoding_format=encoding,
        )
        rows = [
            np.frombuffer(base64.b64decode(one.embedding), "<f4") if isinstance(one.embedding, str) else one.embedding
            for one in result.data
        ]
        np.testing.assert_allclose(rows, expected, atol=1e-7)
        assert [one.index for one in result.data] == [0, 1]
        assert (result.model, result.usage.prompt_tokens, result.usage.total_tokens) == ("fake-encoder", 7, 7)
        assert result.usage.model_extra == {"truncated_inputs": 1}


@pytest.mark.parametrize(
    ("given", "read"), [("a b", ["a b"]), ([1, 2], [[1, 2]]), ([[1], [2, 3]], [[1], [2, 3]]), (["a"], ["a"])]
)
async def test_every_form_of_input(live: RunningApp, encoder: FakeEncoder, given: Any, read: Any) -> None:
    status, result = await post(live, input=given, input_type="query")
    assert status == 200
    assert len(result["data"]) == len(read)
    assert encoder.calls == [(tuple(read), TextRole.QUERY, False)]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": ["a", ""]}, "input[1]"),
        ({"input": ["a", 3]}, "input[1]"),
        ({"input": [[]]}, "input[0]"),
        ({"input": {"text": "a"}}, "input"),
        ({}, "input"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format"),
        ({"input": "a", "dimensions": 4}, "dimensions"),
        ({"input": "a", "input_type": "image"}, "input_type"),
        ({"input": "\ud800"}, "input"),
        ({"input": "a", "tools": [{}]}, "tools"),
    ],
)
async def test_a_wrong_request_is_refused_by_the_field(
    live: RunningApp, encoder: FakeEncoder, body: Any, param: str
) -> None:
    status, result = await post(live, **body)
    assert (status, result["error"]["param"]) == (400, param)
    assert result["error"]["type"] == "invalid_request_error"
    assert not encoder.calls


async def test_too_many_or_too_long_texts_are_refused(
    live: RunningApp, encoder: FakeEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embeddings, "MAX_INPUTS", 2)
    status, result = await post(live, input=["a"] * 3)
    assert (status, result["error"]["message"]) == (400, "The field 'input' has 3 texts; the maximum is 2.")
    status, result = await post(live, input=["a", "b" * 200_001])
    assert (status, result["error"]["message"][:8]) == (400, "input[1]")


async def test_another_model_is_not_found(live: RunningApp, client: openai.AsyncOpenAI, encoder: FakeEncoder) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        await client.embeddings.create(model="fake", input="a")
    assert caught.value.code == "model_not_found"


async def test_without_an_encoder_a_sentence_says_what_to_do(live: RunningApp, client: openai.AsyncOpenAI) -> None:
    live.engine.fake_encoder = None
    with pytest.raises(openai.NotFoundError, match=r"This server has no encoder.*ENGINE_ENCODER"):
        await client.embeddings.create(model="fake", input="a")


async def test_vectors_are_cut_where_the_model_says_so(
    live: RunningApp, client: openai.AsyncOpenAI, encoder: FakeEncoder
) -> None:
    encoder.info = replace(encoder.info, shorter_dimensions=(4,))
    whole = (await client.embeddings.create(model="fake-encoder", input="a b c d")).data[0].embedding
    cut = (await client.embeddings.create(model="fake-encoder", input="a b c d", dimensions=4)).data[0].embedding
    np.testing.assert_allclose(cut, np.array(whole[:4]) / np.linalg.norm(whole[:4]), atol=1e-6)


@pytest.mark.parametrize(("error", "status"), [(EngineStoppedError("No."), 503), (EngineOverloadedError("Full."), 503)])
async def test_errors_of_the_encoder(live: RunningApp, encoder: FakeEncoder, error: Any, status: int) -> None:
    encoder.refuse = error
    assert await post(live, input="a") == (
        status,
        {
            "error": {
                "message": str(error),
                "type": "server_error",
                "param": None,
                "code": "overloaded" if isinstance(error, EngineOverloadedError) else "engine_unavailable",
            }
        },
    )


async def test_the_tokens_count_in_a_users_limits(
    live: RunningApp, encoder: FakeEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[int] = []
    monkeypatch.setattr(UnlimitedAdmission, "record_tokens", lambda self, user_id, tokens: counted.append(tokens))
    assert (await post(live, input=["a b", "c"]))[0] == 200
    assert counted == [3]

    def refuse(self: UnlimitedAdmission, user_id: str, replies: int = 1) -> Any:
        raise too_many_requests("You've used your 3 tokens for today.", 60)

    monkeypatch.setattr(UnlimitedAdmission, "admit", refuse)
    assert (await post(live, input="a"))[0] == 429
    assert len(encoder.calls) == 1
