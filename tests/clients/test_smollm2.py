"""Clients of others against a server with a real model, SmolLM2: what they ask is answered, not only well-formed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
import pytest_asyncio
from pydantic import BaseModel

from engine import Engine, EngineSettings
from testing.smollm2 import smollm2
from tests.app.live_server import serve_app
from tests.clients.installed import run_node, run_python

pytestmark = [pytest.mark.full, pytest.mark.timeout(600), pytest.mark.asyncio(loop_scope="module")]

QUESTION = "What is the capital of France?"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def url(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    # In bfloat16 the model's first two words are so close that a prefix in the cache decides between them.
    settings = EngineSettings(
        _env_file=None, model=str(smollm2()), served_model_name="fake", max_model_len=2048, dtype="float32"
    )
    async with serve_app(tmp_path_factory.mktemp("data"), Engine(settings), gradio=False) as (url, _app, _http):
        yield url


async def test_openai(url: str) -> None:
    async with (
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0) as client,
        client.chat.completions.stream(
            model="fake",
            messages=[{"role": "user", "content": QUESTION}],
            temperature=0,
            max_tokens=24,
            logprobs=True,
            stream_options={"include_usage": True},
        ) as stream,
    ):
        said = [event.content async for event in stream if event.type == "content.done"]
        final = await stream.get_final_completion()
    assert "Paris" in said[0]
    assert final.choices[0].message.content == said[0]
    assert final.usage is not None
    assert final.usage.completion_tokens_details is not None
    assert final.usage.completion_tokens_details.reasoning_tokens == 0


class Capital(BaseModel):
    country: str
    capital: str


async def test_openai_parses_an_object_of_a_schema(url: str) -> None:
    messages: list[Any] = [{"role": "user", "content": f"{QUESTION} Answer in JSON."}]
    asked: dict[str, Any] = {"model": "fake", "messages": messages, "temperature": 0, "max_tokens": 64}
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0) as client:
        whole = await client.chat.completions.parse(response_format=Capital, **asked)
        async with client.chat.completions.stream(response_format=Capital, **asked) as stream:
            final = await stream.get_final_completion()
    assert whole.choices[0].message.parsed is not None
    assert "Paris" in whole.choices[0].message.parsed.capital
    assert final.choices[0].message.parsed == whole.choices[0].message.parsed


async def test_openai_responses(url: str) -> None:
    asked: dict[str, Any] = {"model": "fake", "temperature": 0, "max_output_tokens": 64}
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0) as client:
        first = await client.responses.create(input=QUESTION, **asked)
        async with client.responses.stream(input=QUESTION, **asked) as stream:
            said = [event.delta async for event in stream if event.type == "response.output_text.delta"]
        next_question = "What is the capital of Germany?"
        second = await client.responses.create(input=next_question, previous_response_id=first.id, **asked)
        parsed = await client.responses.parse(input=f"{QUESTION} Answer in JSON.", text_format=Capital, **asked)
        short = await client.responses.create(input=QUESTION, **asked | {"max_output_tokens": 1})
    assert "Paris" in first.output_text
    assert "".join(said) == first.output_text
    assert len(said) > 3
    assert "Berlin" in second.output_text
    assert first.usage is not None
    assert second.usage is not None
    assert second.usage.input_tokens > first.usage.input_tokens + first.usage.output_tokens
    assert parsed.output_parsed is not None
    assert "Paris" in parsed.output_parsed.capital
    assert short.status == "incomplete"


async def test_typed_objects(url: str) -> None:
    answer = await run_python("typed_objects.py", url)
    assert [*answer] == ["instructor", "langchain", "pydantic_ai"]
    assert all("Paris" in one["capital"] for one in answer.values()), answer


async def test_langchain(url: str) -> None:
    answer = await run_python("langchain_chat.py", url)
    assert "Paris" in answer["answers"][0]
    assert "Berlin" in answer["answers"][1]
    assert answer["streamed"] == answer["answers"][0]


async def test_the_ai_sdk(url: str) -> None:
    answer = await run_node("ai_sdk_chat.mjs", url)
    assert "Paris" in answer["text"]
    assert "".join(answer["parts"]) == answer["text"]
    assert len(answer["parts"]) > 3
