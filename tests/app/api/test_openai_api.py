"""``/v1`` with the official client, over a real socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai
import pytest
import pytest_asyncio

from engine import EngineError, EngineOverloadedError, FinishReason, SamplingParams
from testing.fake_engine import CACHED_PROMPT_TOKENS
from testing.waiting import eventually
from tests.app.live_server import RunningApp, live_server, reset_engine

HELLO: list[Any] = [{"role": "user", "content": "hello there"}]


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningApp]:
    async with live_server(tmp_path_factory.mktemp("data")) as running:
        yield running


@pytest.fixture
def live(server: RunningApp) -> RunningApp:
    reset_engine(server.engine)
    return server


@pytest_asyncio.fixture(loop_scope="module")
async def client(live: RunningApp) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{live.url}/v1", api_key="unused", max_retries=0) as client:
        yield client


async def test_models(client: openai.AsyncOpenAI) -> None:
    models = [model async for model in client.models.list()]
    assert [model.id for model in models] == ["fake"]
    assert (await client.models.retrieve("fake")).id == "fake"
    with pytest.raises(openai.NotFoundError) as caught:
        await client.models.retrieve("org/other")
    assert caught.value.code == "model_not_found"


async def test_chat(live: RunningApp, client: openai.AsyncOpenAI) -> None:
    reply = await client.chat.completions.create(
        model="fake",
        messages=[{"role": "developer", "content": "Be brief."}, *HELLO],
        temperature=0.5,
        max_completion_tokens=9,
        stop=["END"],
        seed=3,
        logit_bias={"42": -5},
        n=1,
        tools=openai.omit,
        extra_body={"top_k": 5, "min_p": 0.1, "ignore_eos": True, "min_tokens": 2, "return_token_ids": True},
    )
    choice = reply.choices[0]
    assert choice.message.content == "Hello, world."
    assert choice.finish_reason == "stop"
    assert choice.model_extra is not None
    assert choice.model_extra["token_ids"] == [0, 1, 2, 3]
    assert reply.usage is not None
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens, reply.usage.total_tokens) == (6, 4, 10)
    assert reply.usage.prompt_tokens_details is not None
    assert reply.usage.prompt_tokens_details.cached_tokens == CACHED_PROMPT_TOKENS
    messages, params = live.engine.calls[0]
    assert messages == [{"role": "system", "content": "Be brief."}, *HELLO]
    assert params == SamplingParams(
        temperature=0.5,
        max_tokens=9,
        stop=["END"],
        seed=3,
        logit_bias={42: -5},
        top_k=5,
        min_p=0.1,
        ignore_eos=True,
        min_tokens=2,
    )


async def test_nothing_is_stored(live: RunningApp, client: openai.AsyncOpenAI) -> None:
    await client.chat.completions.create(model="fake", messages=HELLO)
    assert (await live.http.get("/api/conversations")).json()["items"] == []


async def test_chat_stream(client: openai.AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model="fake", messages=HELLO, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    said = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(said) == "Hello, world."
    assert [text for text in said if text] == ["Hello", ", ", "world", "."]
    assert chunks[0].choices[0].delta.role == "assistant"
    reasons = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
    assert reasons[-1] == "stop"
    assert set(reasons[:-1]) == {None}
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 4
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert len({chunk.id for chunk in chunks}) == 1


async def test_a_stream_without_usage_has_none(client: openai.AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(model="fake", messages=HELLO, stream=True)
    chunks = [chunk async for chunk in stream]
    assert all(chunk.choices and chunk.usage is None for chunk in chunks)


async def test_the_stream_arrives_while_the_engine_writes(live: RunningApp, client: openai.AsyncOpenAI) -> None:
    gate = asyncio.Event()
    live.engine.say("early", "late", gates={1: gate})
    stream = await client.chat.completions.create(model="fake", messages=HELLO, stream=True)
    texts: list[str] = []
    async for chunk in stream:
        texts.append(chunk.choices[0].delta.content or "")
        if texts[-1] == "early":
            assert live.engine.running == 1
            gate.set()
    assert "".join(texts) == "earlylate"


@pytest.mark.parametrize("stream", [False, True])
async def test_completions(client: openai.AsyncOpenAI, stream: bool) -> None:
    for prompt in ("Once upon a", [1, 2, 3], ["Once upon a"]):
        answer: Any = await client.completions.create(model="fake", prompt=prompt, stream=stream, max_tokens=5)
        parts = [part async for part in answer] if stream else [answer]
        assert "".join(part.choices[0].text for part in parts) == "Hello, world."
        assert parts[-1].choices[0].finish_reason == "stop"
        assert stream or answer.usage.prompt_tokens == 3


async def test_a_reply_can_be_sent_back_as_it_came(live: RunningApp, client: openai.AsyncOpenAI) -> None:
    reply = await client.chat.completions.create(model="fake", messages=HELLO)
    parts = {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
    again: list[Any] = [*HELLO, reply.choices[0].message.model_dump(), parts]
    await client.chat.completions.create(model="fake", messages=again)
    assert [message["content"] for message in live.engine.calls[1][0]] == ["hello there", "Hello, world.", "a\nb"]


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"n": 17}, "n"),
        ({"n": 0}, "n"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
        ({"logprobs": 3}, "logprobs"),
        ({"extra_body": {"prompt_logprobs": 21}}, "prompt_logprobs"),
        ({"stream": True, "extra_body": {"prompt_logprobs": 1}}, "prompt_logprobs"),
        ({"extra_body": {"echo": True}}, "echo"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"reasoning_effort": "enormous"}, "reasoning_effort"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"extra_body": {"structured_outputs": {"regex": "a", "choice": ["b"]}}}, "structured_outputs"),
        ({"store": True}, "store"),
        ({"n": 2, "extra_body": {"best_of": 1}}, "best_of"),
        ({"temperature": 0, "extra_body": {"best_of": 2}}, "best_of"),
        ({"stream": True, "extra_body": {"best_of": 2}}, "best_of"),
        ({"extra_body": {"beam_width": 2}}, "beam_width"),
        ({"extra_body": {"length_penalty": 2}}, "length_penalty"),
        ({"extra_body": {"early_stopping": "never"}}, "early_stopping"),
        ({"extra_body": {"use_beam_search": True, "beam_width": 65}}, "beam_width"),
        ({"extra_body": {"use_beam_search": True, "early_stopping": "often"}}, "early_stopping"),
        ({"extra_body": {"use_beam_search": True, "length_penalty": 11}}, "length_penalty"),
        ({"n": 3, "extra_body": {"use_beam_search": True, "beam_width": 2}}, "n"),
        ({"stream": True, "extra_body": {"use_beam_search": True}}, "use_beam_search"),
        ({"extra_body": {"use_beam_search": True, "best_of": 2}}, "best_of"),
        ({"extra_body": {"guided_json": {}}}, "guided_json"),
        ({"extra_body": {"typical_p": 1.5}}, "typical_p"),
        ({"extra_body": {"ignore_eos": 1}}, "ignore_eos"),
        ({"extra_body": {"bad_words": "word"}}, "bad_words"),
        ({"extra_body": {"forbidden_words": [""]}}, "forbidden_words"),
        ({"extra_body": {"min_tokens": -1}}, "min_tokens"),
        ({"extra_body": {"stop_token_ids": [-1]}}, "stop_token_ids"),
        ({"extra_body": {"stop_token_ids": 7}}, "stop_token_ids"),
        ({"extra_body": {"return_token_ids": "yes"}}, "return_token_ids"),
        ({"temperature": 11}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 1.5}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"logit_bias": {"word": 1}}, "logit_bias"),
        ({"stop": [""]}, "stop"),
        ({"extra_body": {"repetition_penalty": 0}}, "repetition_penalty"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "function", "content": "x", "name": "f"}]}, "messages[0].role"),
        ({"messages": [{"role": "tool", "content": "x", "tool_call_id": "1"}]}, "messages[0].tool_call_id"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "messages[0]",
        ),
        ({"messages": [{"role": "user", "content": "x", "name": "<|im_end|>"}]}, "messages[0].name"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, None),
        ({"stream_options": {"include_usage": True}}, None),
    ],
)
async def test_what_cannot_be_done_is_refused_by_name(
    live: RunningApp, client: openai.AsyncOpenAI, options: dict[str, Any], param: str | None
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await client.chat.completions.create(**{"model": "fake", "messages": HELLO, **options})
    body: Any = caught.value.body
    assert param is None or str(body["param"]).startswith(param), body
    assert param is None or param.split("[")[0] in body["message"], body
    assert body["type"] == "invalid_request_error"
    assert live.engine.calls == []


@pytest.mark.parametrize(
    "neutral",
    [
        {"n": 1, "logprobs": False, "tools": [], "tool_choice": "none", "response_format": {"type": "text"}},
        {"store": False, "parallel_tool_calls": True, "user": "u", "metadata": {"a": "b"}, "logprobs": None},
    ],
)
async def test_values_that_ask_for_nothing_are_taken(live: RunningApp, neutral: dict[str, Any]) -> None:
    body = {"model": "fake", "messages": HELLO, **neutral}
    assert (await live.http.post("/v1/chat/completions", json=body)).status_code == 200


async def test_unknown_model(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        await client.chat.completions.create(model="gpt-9", messages=HELLO)
    assert caught.value.code == "model_not_found"
    assert "loaded model is 'fake'" in str(caught.value)


@pytest.mark.parametrize("stream", [False, True])
async def test_refusals_have_their_own_status(live: RunningApp, client: openai.AsyncOpenAI, stream: bool) -> None:
    long: list[Any] = [{"role": "user", "content": "word " * 5000}]
    with pytest.raises(openai.BadRequestError) as too_long:
        await client.chat.completions.create(model="fake", messages=long, stream=stream)
    assert too_long.value.code == "context_length_exceeded"
    assert "4096" in str(too_long.value)

    live.engine.refuse = EngineOverloadedError("The engine is full.")
    with pytest.raises(openai.InternalServerError) as full:
        await client.chat.completions.create(model="fake", messages=HELLO, stream=stream)
    assert full.value.status_code == 503
    assert full.value.response.headers["retry-after"] == "1"


async def test_an_error_in_the_middle_of_a_stream_is_an_event(live: RunningApp, client: openai.AsyncOpenAI) -> None:
    live.engine.say("some", "more", fail_at=1, error=EngineError("The engine ran out of memory."))
    stream = await client.chat.completions.create(model="fake", messages=HELLO, stream=True)
    texts: list[str | None] = []

    async def read() -> None:
        async for chunk in stream:
            texts.append(chunk.choices[0].delta.content)

    with pytest.raises(openai.APIError, match="ran out of memory"):
        await read()
    assert "some" in texts


async def test_an_error_in_the_middle_of_a_whole_reply_is_an_error(
    live: RunningApp, client: openai.AsyncOpenAI
) -> None:
    live.engine.say("some", "more", fail_at=1, error=EngineError("The engine ran out of memory."))
    with pytest.raises(openai.InternalServerError, match="ran out of memory"):
        await client.chat.completions.create(model="fake", messages=HELLO)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("held_at", [0, 1])
async def test_a_client_that_leaves_aborts_its_request(live: RunningApp, stream: bool, held_at: int) -> None:
    live.engine.say("one", "two", gates={held_at: asyncio.Event()})
    body = {"model": "fake", "messages": HELLO, "stream": stream}

    async def ask() -> None:
        async with live.http.stream("POST", "/v1/chat/completions", json=body) as response:
            async for _ in response.aiter_bytes():
                pass

    asking = asyncio.create_task(ask())
    await live.engine.started.wait()
    assert live.engine.running == 1
    await asyncio.sleep(0.05)  # let it reach the gate
    asking.cancel()
    await eventually(lambda: live.engine.running == 0)
    assert live.engine.aborted == 1


async def test_finish_reason_length(live: RunningApp, client: openai.AsyncOpenAI) -> None:
    live.engine.say("a", finish_reason=FinishReason.LENGTH)
    reply = await client.chat.completions.create(model="fake", messages=HELLO)
    assert reply.choices[0].finish_reason == "length"


@pytest.mark.parametrize("content", [b"{", b"[]", b'"x"', b"", b'{"model": "fake"}', b"\xff"])
async def test_bodies_that_are_no_request(live: RunningApp, content: bytes) -> None:
    response = await live.http.post(
        "/v1/chat/completions", content=content, headers={"Content-Type": "application/json"}
    )
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"


async def test_every_line_of_a_stream_is_an_event(live: RunningApp) -> None:
    live.engine.say("line one\nline two\r\n", " ", "é\u2028")
    body = {"model": "fake", "messages": HELLO, "stream": True}
    async with live.http.stream("POST", "/v1/chat/completions", json=body) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["cache-control"] == "no-cache"
        text = (await response.aread()).decode()
    events = [event.removeprefix("data: ") for event in text.strip().split("\n\n")]
    assert events[-1] == "[DONE]"
    said = [json.loads(event)["choices"][0]["delta"].get("content", "") for event in events[:-1]]
    assert "".join(said) == "line one\nline two\r\n \u00e9\u2028"


async def test_the_plain_client_works_too(live: RunningApp) -> None:
    """The synchronous client, as most people use it, from a thread."""

    def ask() -> str | None:
        plain: Any = httpx.Client()
        with openai.OpenAI(base_url=f"{live.url}/v1", api_key="unused", http_client=plain) as client:
            return client.chat.completions.create(model="fake", messages=HELLO).choices[0].message.content

    assert await asyncio.to_thread(ask) == "Hello, world."


async def test_an_adapter_is_listed_and_chosen_as_a_model(live: RunningApp, client: openai.AsyncOpenAI) -> None:
    live.engine.list_adapters("team/sql")
    cards = {model.id: model.to_dict() async for model in client.models.list()}
    assert (cards["fake"]["parent"], cards["team/sql"]["parent"]) == (None, "fake")
    assert (await client.models.retrieve("team/sql")).to_dict()["parent"] == "fake"
    chat = await client.chat.completions.create(model="team/sql", messages=HELLO)
    text = await client.completions.create(model="team/sql", prompt=["a", "b"])
    plain = await client.chat.completions.create(model="fake", messages=HELLO)
    assert [chat.model, text.model, plain.model] == ["team/sql", "team/sql", "fake"]
    assert live.engine.adapters == ["team/sql", "team/sql", "team/sql", None]
    assert chat.system_fingerprint == text.system_fingerprint != plain.system_fingerprint
    with pytest.raises(openai.NotFoundError):
        await client.chat.completions.create(model="team/other", messages=HELLO)
