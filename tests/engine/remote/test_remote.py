"""Replies from model servers elsewhere, also from such as do not do what they should."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
from prometheus_client import generate_latest

from engine import (
    Caller,
    ChatEngine,
    ChatMessage,
    ContextLengthError,
    DeadlineError,
    Delta,
    EngineError,
    EngineFailedError,
    EngineOverloadedError,
    EngineSettings,
    EngineState,
    EngineStoppedError,
    FinishReason,
    InvalidRequestError,
    ModelHost,
    ModelLoadError,
    RemoteEngine,
    ReplyInterruptedError,
    SamplingParams,
    Truncation,
)
from engine.remote import dispatcher, upstreams
from engine.remote.chat_request import ChatRequest
from engine.remote.dialects import DIALECTS
from engine.remote.dispatcher import MAX_BACKOFF_SECONDS
from testing.scripted_server import (
    DISCONNECT,
    DONE,
    ScriptedResponse,
    ScriptedServer,
    chunk,
    event,
    refusal,
    reply,
    usage,
    words,
)
from testing.waiting import LoopClock, eventually

HI: list[ChatMessage] = [{"role": "user", "content": "hi"}]
NEVER = asyncio.Event

Connect = Callable[..., Awaitable[RemoteEngine]]


@pytest.fixture
async def connect(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Connect]:
    """Starts engines over servers, with settings; stops them all. They do not wait long before they ask again; what
    takes its time is well, and what rests does so for all of a test."""
    monkeypatch.setattr(dispatcher, "FIRST_BACKOFF_SECONDS", 0.005)
    monkeypatch.setattr(upstreams, "HEALTH_TIMEOUT_SECONDS", 60.0)
    for name in ("FIRST_COOLDOWN_SECONDS", "MAX_COOLDOWN_SECONDS"):
        monkeypatch.setattr(upstreams, name, 600.0)
    async with AsyncExitStack() as stack:

        async def connect(*servers: ScriptedServer, **settings: Any) -> RemoteEngine:
            urls = ",".join(server.url for server in servers)
            chosen = EngineSettings(_env_file=None, **{"remote_url": urls, "remote_timeout": 30, **settings})
            return await stack.enter_async_context(RemoteEngine(chosen))

        yield connect


@pytest.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    async with ScriptedServer() as server:
        yield server


@pytest.fixture
async def other() -> AsyncIterator[ScriptedServer]:
    async with ScriptedServer() as server:
        yield server


async def read(deltas: AsyncIterator[Delta]) -> list[Delta]:
    return [delta async for delta in deltas]


def text_of(deltas: list[Delta]) -> str:
    return "".join(delta.text for delta in deltas)


async def said(engine: ChatEngine, **params: Any) -> str:
    return text_of(await read(engine.chat(HI, SamplingParams(**params))))


# -- a reply ----------------------------------------------------------------------------------------------


async def test_a_reply(server: ScriptedServer, connect: Connect) -> None:
    engine: ChatEngine = await connect(server, remote_api_key="secret")
    pieces = [chunk("Hel", token_ids=[5]), chunk("lo", token_ids=[6, 7]), chunk("", "stop", stop_reason="END")]
    server.say(reply(chunk(), *pieces, usage(11, 3, cached=8), DONE))
    deltas = await read(engine.chat(HI))
    assert [delta.text for delta in deltas] == ["Hel", "lo", ""]
    assert [delta.token_ids for delta in deltas] == [(5,), (6, 7), ()]
    assert [delta.num_tokens for delta in deltas] == [1, 2, 0]
    assert [delta.is_last for delta in deltas] == [False, False, True]
    last = deltas[-1]
    assert (last.finish_reason, last.stop_reason) == (FinishReason.STOP, "END")
    assert last.timings is not None
    assert (last.timings.prompt_tokens, last.timings.cached_prompt_tokens) == (11, 8)
    assert last.timings.completion_tokens == 3
    assert 0 < last.timings.time_to_first_token_seconds <= last.timings.total_seconds
    assert engine.info.name == "m"
    assert engine.info.max_model_len == 100
    assert server.generation_requests[0].headers["authorization"] == "Bearer secret"
    assert server.generation_requests[0].body["messages"] == HI
    assert server.generation_requests[0].body["stream"] is True
    assert engine.health().ready
    assert not isinstance(engine, ModelHost)


async def test_bytes_may_be_cut_anywhere(server: ScriptedServer, connect: Connect) -> None:
    engine = await connect(server)
    line_separator = "a\u2028b日\x85"
    two_lines = chunk("?").replace(b", ", b",\ndata: ", 1).replace(b"\n", b"\r\n")
    whole = b": ping\r\n\r\n" + chunk(line_separator) + two_lines + chunk("!", "length") + DONE
    server.say(reply(*(whole[at : at + 1] for at in range(len(whole)))))
    deltas = await read(engine.chat(HI))
    assert text_of(deltas) == line_separator + "?!"
    assert deltas[-1].finish_reason is FinishReason.LENGTH


async def test_lines_that_end_with_a_carriage_return_alone(server: ScriptedServer, connect: Connect) -> None:
    engine = await connect(server)
    whole = (chunk("a") + chunk("b", "stop") + DONE).replace(b"\n", b"\r")
    server.say(reply(*(whole[at : at + 3] for at in range(0, len(whole), 3))))
    assert await said(engine) == "ab"


async def test_a_server_that_tells_no_usage_is_counted_here(connect: Connect) -> None:
    async with ScriptedServer(owned_by="me", max_model_len=None) as server:
        engine = await connect(server, max_model_len=64)
        server.say(reply(chunk(), chunk("a"), chunk("b"), chunk(None, "stop"), DONE))
        deltas = await read(engine.chat(HI))
        assert deltas[-1].timings is not None
        assert deltas[-1].timings.completion_tokens == 2
        assert deltas[-1].timings.prompt_tokens == (await engine.prepare(HI)).num_prompt_tokens > 0
        assert "stream_options" not in server.generation_requests[0].body
        assert engine.info.max_model_len == 64


async def test_the_end_may_come_without_done(server: ScriptedServer, connect: Connect) -> None:
    engine = await connect(server)
    server.say(reply(chunk("a"), chunk("b", "stop")))
    assert await said(engine) == "ab"


async def test_what_breaks_behind_the_end_of_a_reply_is_no_loss(server: ScriptedServer, connect: Connect) -> None:
    engine = await connect(server)
    server.say(reply(chunk("a"), chunk("b", "length"), DISCONNECT))
    deltas = await read(engine.chat(HI))
    assert (text_of(deltas), deltas[-1].finish_reason) == ("ab", FinishReason.LENGTH)


async def test_several_replies_at_once(server: ScriptedServer, connect: Connect) -> None:
    engine = await connect(server)
    server.say(
        reply(
            *(chunk(text, index=index) for text, index in [("a", 0), ("x", 1), ("b", 0)]),
            chunk(None, "stop", index=1), chunk(None, "length", index=0), usage(5, 3), DONE,
        )
    )  # fmt: skip
    deltas = await read(engine.chat(HI, SamplingParams(n=2)))
    assert text_of([delta for delta in deltas if delta.index == 0]) == "ab"
    assert text_of([delta for delta in deltas if delta.index == 1]) == "x"
    ends = [(delta.index, delta.finish_reason, delta.num_unfinished) for delta in deltas if delta.finish_reason]
    assert ends == [(0, FinishReason.LENGTH, 1), (1, FinishReason.STOP, 0)]
    assert [delta.timings.completion_tokens for delta in deltas if delta.timings] == [2, 1]


async def test_logprobs_of_a_chat_and_of_a_completion(server: ScriptedServer, connect: Connect) -> None:
    engine = await connect(server)
    top = [{"token": "a", "logprob": -0.5, "bytes": [97]}, {"token": "é", "logprob": -1.5, "bytes": None}]
    server.say(
        reply(chunk("a", "stop", token_ids=[9], logprobs={"content": [{**top[0], "top_logprobs": top}]}), DONE),
        reply(
            event({"choices": [{"index": 0, "text": "ab", "finish_reason": "stop", "logprobs": {
                "tokens": ["a", "b"], "token_logprobs": [-1, -2], "top_logprobs": [{"c": -3, "a": -1}, None],
            }}]}), DONE,
        ),
    )  # fmt: skip
    deltas = await read(engine.chat(HI, SamplingParams(logprobs=2)))
    (scores,) = deltas[0].logprobs
    assert (scores.token.token_id, scores.token.logprob, scores.token.data) == (9, -0.5, b"a")
    assert [(each.text, each.data) for each in scores.top] == [("a", b"a"), ("é", "é".encode())]
    assert (server.generation_requests[0].body["logprobs"], server.generation_requests[0].body["top_logprobs"]) == (
        True,
        2,
    )
    deltas = await read(engine.complete("x", SamplingParams(logprobs=2)))
    first, second = deltas[0].logprobs
    assert [each.text for each in first.top] == ["a", "c"]
    assert (second.token.logprob, second.top, deltas[0].num_tokens) == (-2, (), 2)
    assert server.generation_requests[1].body["logprobs"] == 2
    assert server.generation_requests[1].body["prompt"] == "x"


async def test_leaving_closes_the_connection(server: ScriptedServer, connect: Connect) -> None:
    engine = await connect(server)
    server.say(reply(chunk("a"), NEVER()))
    stream = engine.chat(HI)
    assert (await anext(stream)).text == "a"
    assert engine.stats().num_requests_running == 1
    await stream.aclose()
    await eventually(lambda: server.num_disconnects == 1)
    server.say(reply(NEVER()))
    waiting = asyncio.create_task(read(engine.chat(HI)))
    await eventually(lambda: server.running == 1)
    waiting.cancel()
    await eventually(lambda: server.num_disconnects == 2)
    assert engine.stats().num_requests_running == 0
    assert engine.stats().requests_finished["abort"] == 2
    assert await engine.drain(0.0)


# -- what goes wrong ------------------------------------------------------------------------------------------

#: What a server does instead of going on with its reply.
FAULTS: dict[str, list[Any]] = {
    "hangs up": [DISCONNECT],
    "ends without an end": [],
    "half an event": [chunk("never seen")[:20], DISCONNECT],
    "half an event, and an end": [chunk("never seen")[:20]],
    "no JSON": [b"data: {oops\n\n"],
    "JSON of another shape": [event({"choices": [{"index": "one"}]})],
    "not UTF-8": [b'data: {"choices": "\xff"}\n\n'],
    "a choice with an unexpected index": [chunk("x", index=3)],
}
#: What it answers in the place of a reply.
ANSWERS = {
    "status 500": refusal(500, {"error": {"message": "boom"}}),
    "status 502 of a proxy": ScriptedResponse([b"<html>Bad Gateway</html>"], 502, {"Content-Type": "text/html"}),
    "status 503": refusal(503, {"error": "loading"}),
    "a page": ScriptedResponse([b"<html>Welcome</html>"], 200, {"Content-Type": "text/html"}),
    "an error as the first event": reply(chunk(), event({"error": {"message": "out of memory", "code": 500}})),
}
BEFORE = {
    **{name: reply(chunk(), *pieces) for name, pieces in FAULTS.items()},
    "hangs up without a word": reply(DISCONNECT),
    **ANSWERS,
}


@pytest.mark.parametrize("fault", list(BEFORE))
async def test_before_the_first_token_the_request_is_sent_again(
    server: ScriptedServer, connect: Connect, fault: str
) -> None:
    engine = await connect(server)
    server.say(BEFORE[fault])
    assert await said(engine) == "Hello world"
    assert len(server.generation_requests) == 2
    assert b"deskmate_remote_retries_total 1.0" in generate_latest(engine.registry)


@pytest.mark.parametrize("fault", list(BEFORE))
async def test_it_is_not_sent_again_for_ever(server: ScriptedServer, connect: Connect, fault: str) -> None:
    engine = await connect(server, remote_retries=1)
    server.default = BEFORE[fault]
    with pytest.raises(EngineStoppedError) as caught:
        await said(engine)
    assert len(server.generation_requests) == 2
    sentence = str(caught.value)
    assert sentence.endswith(".")
    assert "<" not in sentence
    assert engine.stats().requests_finished["error"] == 1


@pytest.mark.parametrize("fault", list(FAULTS))
async def test_in_the_middle_the_reply_is_interrupted(server: ScriptedServer, connect: Connect, fault: str) -> None:
    engine = await connect(server)
    server.say(reply(chunk(), chunk("so far"), *FAULTS[fault]))
    stream = engine.chat(HI)
    assert (await anext(stream)).text == "so far"
    with pytest.raises(ReplyInterruptedError, match="in the middle of this reply"):
        await anext(stream)
    assert len(server.generation_requests) == 1


async def test_an_error_in_the_middle(server: ScriptedServer, connect: Connect) -> None:
    engine = await connect(server)
    told = {"error": {"message": "CUDA out of memory", "type": "InternalServerError", "code": 500}}
    server.say(reply(chunk("so far"), event(told), DONE))
    with pytest.raises(EngineFailedError, match="CUDA out of memory"):
        await said(engine)
    assert len(server.generation_requests) == 1


async def test_the_word_error_in_a_reply_is_none(server: ScriptedServer, connect: Connect) -> None:
    engine = await connect(server)
    server.say(words('{"error": 1}'))
    assert await said(engine) == '{"error": 1}'


async def test_a_server_that_says_nothing(server: ScriptedServer, connect: Connect) -> None:
    engine = await connect(server, remote_timeout=100, remote_retries=0)
    clock = LoopClock()
    server.say(reply(NEVER()), reply(chunk("a"), NEVER()))
    waiting = asyncio.create_task(said(engine))
    await eventually(lambda: server.running == 1)
    await clock.advance_until(waiting.done, 101)
    with pytest.raises(EngineStoppedError, match="does not answer in time"):
        await waiting
    stream = engine.chat(HI)
    assert (await anext(stream)).text == "a"
    reading = asyncio.create_task(read(stream))
    await clock.advance_until(reading.done, 101)
    with pytest.raises(ReplyInterruptedError, match="does not answer in time"):
        await reading


async def test_deadlines(server: ScriptedServer, connect: Connect) -> None:
    engine = await connect(server, remote_timeout=3600)
    clock = LoopClock()
    server.say(reply(NEVER()), reply(chunk("a"), NEVER()))
    waiting = asyncio.create_task(read(engine.chat(HI, deadline=500)))
    await eventually(lambda: server.running == 1)
    await clock.advance_until(waiting.done, 501)
    with pytest.raises(DeadlineError):
        await waiting
    stream = engine.chat(HI, deadline=500)
    first = await anext(stream)
    reading = asyncio.create_task(read(stream))
    await clock.advance_until(reading.done, 501)
    deltas = [first, *await reading]
    assert (text_of(deltas), deltas[-1].finish_reason) == ("a", FinishReason.DEADLINE)
    await eventually(lambda: server.num_disconnects == 2)


@pytest.mark.parametrize("status", [429, 503])
async def test_a_busy_server_is_given_the_time_it_asks_for(
    server: ScriptedServer, connect: Connect, status: int
) -> None:
    engine = await connect(server)
    server.say(refusal(status, {"error": {"message": "busy"}}, Retry_After="0"))
    assert await said(engine) == "Hello world"
    server.say(refusal(status, {"error": {"message": "busy"}}, Retry_After=str(10 * MAX_BACKOFF_SECONDS)))
    with pytest.raises(EngineOverloadedError, match="50 seconds"):
        await said(engine)
    assert len(server.generation_requests) == 3
    assert engine.health().ready


@pytest.mark.parametrize(
    ("answer", "kind", "match"),
    [
        (refusal(400, {"error": {"message": "bad thing"}}), InvalidRequestError, "bad thing"),
        (refusal(422, {"detail": [{"loc": ["x"], "msg": "must be y"}]}), InvalidRequestError, "must be y"),
        (refusal(401, {"error": {"message": "no"}}), EngineStoppedError, "ENGINE_REMOTE_API_KEY"),
    ],
)
async def test_what_trying_again_does_not_help(
    server: ScriptedServer, connect: Connect, answer: ScriptedResponse, kind: type[EngineError], match: str
) -> None:
    engine = await connect(server)
    server.say(answer)
    with pytest.raises(kind, match=match):
        await said(engine)
    assert len(server.generation_requests) == 1


# -- the context --------------------------------------------------------------------------------------------

VLLM_LIMIT = "This model's maximum context length is 100 tokens"
TOO_LONG: dict[str, Any] = {
    "vLLM": {
        "message": f"{VLLM_LIMIT}. However, you requested 140 tokens (120 in the messages, 20 in the "
        "completion). Please reduce the length of the messages or completion.",
        "type": "BadRequestError",
        "code": 400,
    },
    "vLLM, later": {
        "message": f"{VLLM_LIMIT}. However, your request has 120 input tokens. Please reduce the length of the input "
        "messages.",
        "code": 400,
    },
    "llama.cpp": {
        "message": "request (120 tokens) exceeds the available context size (100 tokens), try increasing it",
        "type": "exceed_context_size_error",
        "code": 400,
        "n_prompt_tokens": 120,
        "n_ctx": 100,
    },
    "TGI": "Input validation error: `inputs` must have less than 100 tokens. Given: 120",
    "Deskmate": {
        "message": "The prompt is 120 tokens long; the model reads at most 100, and at least one must be left for the "
        "reply. Shorten it.",
        "type": "invalid_request_error",
        "code": "context_length_exceeded",
    },
}


@pytest.mark.parametrize("name", list(TOO_LONG))
async def test_a_prompt_that_the_server_finds_too_long(server: ScriptedServer, connect: Connect, name: str) -> None:
    engine = await connect(server)
    server.say(*[refusal(400, {"error": TOO_LONG[name]})] * 2)
    with pytest.raises(ContextLengthError) as caught:
        await said(engine)
    assert (caught.value.prompt_tokens, caught.value.max_model_len) == (120, 100)


@pytest.mark.parametrize(
    "told",
    [
        f"'max_tokens' or 'max_completion_tokens' is too large: 90. {VLLM_LIMIT} and your request has 30 input tokens.",
        "max_tokens=90 cannot be greater than max_model_len=100. Please request fewer output tokens.",
        f"{VLLM_LIMIT}. However, you requested 120 tokens (30 in the messages, 90 in the completion).",
    ],
)
async def test_a_maximum_length_that_does_not_fit_is_an_upper_bound(
    server: ScriptedServer, connect: Connect, told: str
) -> None:
    engine = await connect(server)
    server.on["/tokenize"] = refusal(200, {"count": 30})
    server.say(refusal(400, {"error": {"message": told, "code": 400}}))
    assert await said(engine, max_tokens=90) == "Hello world"
    assert [asked.body["max_tokens"] for asked in server.generation_requests] == [90, 70]


async def test_vllm_counts_the_tokens(server: ScriptedServer, connect: Connect) -> None:
    engine = await connect(server)
    server.on["/tokenize"] = refusal(200, {"count": 42, "max_model_len": 100, "tokens": []})
    assert (await engine.prepare(HI)).num_prompt_tokens == 42
    assert server.other_requests[-1].body == {"model": "m", "messages": HI, "add_generation_prompt": True}
    server.on["/tokenize"] = refusal(200, {"count": 100, "max_model_len": 100, "tokens": []})
    with pytest.raises(ContextLengthError, match="100 tokens long"):
        await engine.prepare(HI)


async def test_llama_cpp_counts_the_tokens(connect: Connect) -> None:
    async with ScriptedServer(owned_by="llamacpp", max_model_len=None) as server:
        server.on["/props"] = refusal(200, {"default_generation_settings": {"n_ctx": 512}})
        server.on["/apply-template"] = refusal(200, {"prompt": "<u>hi<a>"})
        server.on["/tokenize"] = refusal(200, {"tokens": [1, 2, 3]})
        engine = await connect(server)
        assert engine.info.max_model_len == 512
        assert (await engine.prepare(HI)).num_prompt_tokens == 3
        assert server.other_requests[-1].body["content"] == "<u>hi<a>"


async def test_an_estimate_refuses_nobody_and_learns(connect: Connect) -> None:
    async with ScriptedServer(owned_by="somebody") as server:
        engine = await connect(server)
        long: list[ChatMessage] = [{"role": "user", "content": "word " * 1000}]
        assert (await engine.prepare(long)).num_prompt_tokens == 99
        before = (await engine.prepare([{"role": "user", "content": "word " * 40}])).num_prompt_tokens
        for _ in range(20):
            server.say(reply(chunk("a", "stop"), usage(2010, 1), DONE))
            await read(engine.chat(long))
        after = (await engine.prepare([{"role": "user", "content": "word " * 40}])).num_prompt_tokens
        assert before < 70 < 80 < after < 99


# -- prepared first -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("asked", [{}, {"n": 2, "seed": 3, "stop": "x"}])
async def test_what_was_prepared_is_sent_as_chat_sends_it(
    server: ScriptedServer, connect: Connect, asked: dict[str, Any]
) -> None:
    engine = await connect(server)
    server.on["/tokenize"] = refusal(200, {"count": 42})
    params, caller = SamplingParams(**asked), Caller("ann")
    messages = [message.copy() for message in HI]
    server.default = reply(*(chunk("a", "stop", index=index) for index in range(params.n)), usage(42, params.n), DONE)
    prepared = await engine.prepare(messages, params, caller=caller)
    assert (prepared.num_prompt_tokens, prepared.max_model_len, prepared.params.temperature) == (42, 100, 1.0)
    assert server.generation_requests == []
    messages[0]["content"] = "changed"
    counted = len(server.other_requests)
    for _ in range(2):
        deltas = await read(engine.stream(prepared, priority=0))
        assert text_of(deltas) == "a" * params.n
    await read(engine.chat(HI, params, caller=caller))
    assert len(server.other_requests) == counted, "counted once, where it was prepared"
    first, second, by_chat = (request.body for request in server.generation_requests)
    assert first == second == by_chat
    assert first["messages"] == HI
    assert "temperature" not in first, "what was not asked for is left to the server"
    assert first["cache_salt"] == ChatRequest(messages=HI, caller=caller).body(DIALECTS["vllm"], "m")["cache_salt"]


async def test_what_was_prepared_is_sent_to_a_server_that_lives(
    server: ScriptedServer, other: ScriptedServer, connect: Connect
) -> None:
    engine = await connect(server, other)
    prepared = [await engine.prepare([{"role": "user", "content": f"{number}"}]) for number in range(10)]
    await server.stop()
    for each in prepared:
        assert text_of(await read(engine.stream(each))) == "Hello world"
    assert [request.body["messages"][0]["content"] for request in other.generation_requests] == list("0123456789")


async def test_a_prepared_unfinished_reply_goes_on(server: ScriptedServer, connect: Connect) -> None:
    engine = await connect(server)
    await read(engine.stream(await engine.prepare(UNFINISHED)))
    body = server.generation_requests[0].body
    assert (body["continue_final_message"], body["messages"][-1]["content"]) == (True, "Hel")


async def test_a_stopped_engine_sends_nothing_that_was_prepared(server: ScriptedServer, connect: Connect) -> None:
    engine = await connect(server)
    prepared = await engine.prepare(HI)
    assert await engine.drain(1.0)
    for refused in (engine.prepare(HI), read(engine.stream(prepared))):
        with pytest.raises(EngineStoppedError):
            await refused
    assert server.generation_requests == []


@pytest.mark.parametrize("owner", ["somebody", "vllm"])
async def test_the_oldest_turns_are_left_out_by_the_servers_count_or_an_estimate(connect: Connect, owner: str) -> None:
    async with ScriptedServer(owned_by=owner, max_model_len=200) as server:
        engine = await connect(server)
        talk: list[ChatMessage] = [{"role": "system", "content": "Be kind."}]
        for number in range(20):
            talk += [{"role": "user", "content": f"{number} " * 10}, {"role": "assistant", "content": "word " * 10}]
        talk.append({"role": "user", "content": "last"})
        if owner == "vllm":  # whatever is left out, it does not fit
            server.on["/tokenize"] = refusal(200, {"count": 200})
            with pytest.raises(ContextLengthError, match="200 tokens long"):
                await engine.prepare(talk, truncation=Truncation())
            counted = [request.body["messages"] for request in server.other_requests if request.path == "/tokenize"]
            assert counted[0] == talk
            assert [talk[0], talk[-1]] in counted
            return
        prepared = await engine.prepare(talk, truncation=Truncation())
        omitted = prepared.num_omitted_messages
        assert omitted > 20
        assert omitted % 2 == 0
        assert prepared.num_prompt_tokens <= 150
        await read(engine.stream(prepared))
        assert server.generation_requests[0].body["messages"] == [talk[0], *talk[1 + omitted :]]


# -- what servers understand ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("owner", "asked", "sent"),
    [
        ("vllm", {"top_k": 0, "repetition_penalty": 1.0}, {"top_k": -1, "repetition_penalty": 1.0}),
        ("vllm", {"stop": "x", "bad_words": ["a"]}, {"stop": ["x"], "bad_words": ["a"]}),
        ("vllm", {"logit_bias": {3: 1}, "min_p": 0.1}, {"logit_bias": {"3": 1.0}, "min_p": 0.1}),
        ("deskmate", {"typical_p": 0.5, "forbidden_words": ["a"]}, {"typical_p": 0.5, "forbidden_words": ["a"]}),
        ("llamacpp", {"repetition_penalty": 1.1, "top_k": 5}, {"repeat_penalty": 1.1, "repeat_last_n": -1, "top_k": 5}),
        ("me", {"repetition_penalty": 1.1, "seed": 3}, {"repeat_penalty": 1.1, "seed": 3}),
        ("openai", {"top_k": 0, "min_p": 0, "temperature": 0}, {"temperature": 0}),
    ],
)  # fmt: skip
async def test_parameters_as_each_server_spells_them(
    connect: Connect, owner: str, asked: dict[str, Any], sent: dict[str, Any]
) -> None:
    async with ScriptedServer(owned_by=owner) as server:
        engine = await connect(server)
        await said(engine, **asked)
        common = {"model", "stream", "stream_options", "messages", "return_token_ids"}
        assert {name: value for name, value in server.generation_requests[0].body.items() if name not in common} == sent


@pytest.mark.parametrize(
    ("owner", "asked"),
    [
        ("vllm", {"typical_p": 0.5}),
        ("vllm", {"forbidden_words": ["a"]}),
        ("vllm", {"prompt_logprobs": 1}),
        ("sglang", {"bad_words": ["a"]}),
        ("llamacpp", {"min_tokens": 3}),
        ("me", {"n": 2}),
        ("openai", {"top_k": 5}),
    ],
)
async def test_parameters_a_server_does_not_know_are_refused_by_name(
    connect: Connect, owner: str, asked: dict[str, Any]
) -> None:
    async with ScriptedServer(owned_by=owner) as server:
        engine = await connect(server)
        (name,) = asked
        for refused in (engine.prepare(HI, SamplingParams(**asked)), said(engine, **asked)):
            with pytest.raises(InvalidRequestError, match=f"^{name} "):
                await refused
        assert server.generation_requests == []


async def test_tgi_is_known_by_what_it_tells(connect: Connect) -> None:
    async with ScriptedServer(owned_by="m", max_model_len=None) as server:
        server.on["/info"] = refusal(200, {"model_id": "m", "max_total_tokens": 4000})
        engine = await connect(server)
        assert (engine.info.attention, engine.info.max_model_len) == ("TGI", 4000)
        await said(engine, top_p=1.0, temperature=0.5)
        assert "top_p" not in server.generation_requests[0].body


async def test_a_server_that_only_resembles_another_is_none_of_that_kind(connect: Connect) -> None:
    async with ScriptedServer(owned_by="me") as server:
        server.on["/openapi.json"] = refusal(200, {"info": {"title": "My own server"}})
        engine = await connect(server)
        with pytest.raises(InvalidRequestError, match="top_k"):
            await said(engine, top_k=5)


async def test_the_kind_can_be_told(server: ScriptedServer, connect: Connect) -> None:
    engine = await connect(server, remote_kind="openai")
    with pytest.raises(InvalidRequestError, match="top_k"):
        await said(engine, top_k=5)


UNFINISHED: list[ChatMessage] = [
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": "Hel", "token_ids": (1, 2), "unfinished": True},
]


@pytest.mark.parametrize("owner", ["vllm", "sglang", "deskmate"])
async def test_a_reply_goes_on(connect: Connect, owner: str) -> None:
    async with ScriptedServer(owned_by=owner) as server:
        engine = await connect(server)
        await engine.prepare(UNFINISHED)
        await read(engine.chat(UNFINISHED))
        body = server.generation_requests[0].body
        assert (body["continue_final_message"], body["add_generation_prompt"]) == (True, False)
        assert body["messages"][-1] == {"role": "assistant", "content": "Hel"}


@pytest.mark.parametrize("owner", ["openai", "me"])
async def test_a_server_that_cannot_go_on_with_a_reply(connect: Connect, owner: str) -> None:
    async with ScriptedServer(owned_by=owner) as server:
        engine = await connect(server)
        with pytest.raises(InvalidRequestError, match="cannot continue"):
            await engine.prepare(UNFINISHED)
        with pytest.raises(InvalidRequestError, match="cannot continue"):
            await read(engine.chat(UNFINISHED))
        assert server.generation_requests == []


# -- several servers ------------------------------------------------------------------------------------------


async def test_the_least_busy_is_asked(server: ScriptedServer, other: ScriptedServer, connect: Connect) -> None:
    engine = await connect(server, other)
    for each in (server, other):
        each.default = reply(chunk("a"), NEVER())
    streams = [engine.chat(HI) for _ in range(6)]
    for stream in streams:
        await anext(stream)
    assert (server.running, other.running) == (3, 3)
    for stream in streams:
        await stream.aclose()


async def test_a_conversation_stays_where_it_is_known(
    server: ScriptedServer, other: ScriptedServer, connect: Connect
) -> None:
    engine = await connect(server, other)
    for number in range(20):
        asked = len(server.generation_requests), len(other.generation_requests)
        talk: list[ChatMessage] = [{"role": "user", "content": f"question {number}"}]
        for _ in range(3):
            await read(engine.chat(talk))
        assert (len(server.generation_requests) - asked[0], len(other.generation_requests) - asked[1]) in (
            (3, 0),
            (0, 3),
        )
    assert len(server.generation_requests) > 0
    assert len(other.generation_requests) > 0


@pytest.mark.parametrize("fault", list(BEFORE))
async def test_another_server_takes_over_before_the_first_token(
    server: ScriptedServer, other: ScriptedServer, connect: Connect, fault: str
) -> None:
    engine = await connect(server, other)
    server.default = BEFORE[fault]
    for number in range(30):  # spread over both
        talk: list[ChatMessage] = [{"role": "user", "content": f"{number}"}]
        assert text_of(await read(engine.chat(talk))) == "Hello world"
    assert server.generation_requests


async def test_a_busy_server_is_left_alone_while_another_has_time(
    server: ScriptedServer, other: ScriptedServer, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatcher, "MAX_BACKOFF_SECONDS", 600.0)
    engine = await connect(server, other)
    server.default = refusal(429, {}, Retry_After="60")
    for number in range(20):
        assert text_of(await read(engine.chat([{"role": "user", "content": f"{number}"}]))) == "Hello world"
    assert len(server.generation_requests) == 1
    assert len(other.generation_requests) == 20


async def test_a_server_dies_and_returns(
    server: ScriptedServer, other: ScriptedServer, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upstreams, "HEALTH_INTERVAL_SECONDS", 0.02)
    engine = await connect(server, other)
    await server.stop()
    for number in range(6):
        assert text_of(await read(engine.chat([{"role": "user", "content": f"{number}"}]))) == "Hello world"
    up = f'deskmate_remote_up{{server="{server.label}"}}'
    await eventually(lambda: f"{up} 0.0" in generate_latest(engine.registry).decode())
    assert engine.health().ready
    await other.stop()
    await eventually(lambda: not engine.health().ready)
    assert engine.status.state is EngineState.FAILED
    with pytest.raises(EngineStoppedError, match="No model server is available"):
        await engine.prepare(HI)
    await server.start()
    await eventually(lambda: engine.health().ready)
    assert f"{up} 1.0" in generate_latest(engine.registry).decode()
    assert await said(engine) == "Hello world"


async def test_a_server_whose_replies_break_off_rests(
    server: ScriptedServer, other: ScriptedServer, connect: Connect
) -> None:
    """Though it says that it is well."""
    engine = await connect(server, other)
    server.default = reply(chunk("a"), DISCONNECT)
    failures = 0
    for number in range(40):
        try:
            await read(engine.chat([{"role": "user", "content": f"{number}"}]))
        except ReplyInterruptedError:
            failures += 1
    assert failures == upstreams.FAILURES_TO_EJECT == len(server.generation_requests)


async def test_the_only_server_is_asked_whatever_it_did(server: ScriptedServer, connect: Connect) -> None:
    engine = await connect(server, remote_retries=0)
    server.say(*[reply(DISCONNECT)] * 5)
    for _ in range(5):
        with pytest.raises(EngineStoppedError):
            await said(engine)
    assert await said(engine) == "Hello world"


async def test_servers_with_different_models(connect: Connect) -> None:
    async with ScriptedServer("a") as one, ScriptedServer("b") as two:
        engine = await connect(one, two, remote_model="b")
        for number in range(5):
            await read(engine.chat([{"role": "user", "content": f"{number}"}]))
        assert (len(one.generation_requests), len(two.generation_requests)) == (0, 5)
        assert engine.info.name == "b"


# -- life ---------------------------------------------------------------------------------------------------


async def test_a_server_that_is_not_there_yet(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstreams, "HEALTH_INTERVAL_SECONDS", 0.02)
    async with ScriptedServer() as server:
        await server.stop()
        engine = await connect(server, remote_model="m")
        assert not engine.health().ready
        assert engine.status.state is EngineState.STARTING
        assert "cannot be reached" in (engine.status.reason or "")
        assert engine.info.name == "m"
        with pytest.raises(EngineStoppedError, match="cannot be reached"):
            await said(engine)
        await server.start()
        await eventually(lambda: engine.health().ready)
        assert await said(engine) == "Hello world"


@pytest.mark.parametrize(
    ("answer", "settings", "match"),
    [
        (refusal(401, {}), {}, "ENGINE_REMOTE_API_KEY"),
        (refusal(404, {}), {}, "404"),
        (refusal(200, {"hello": 1}), {}, "does not list its models"),
        (ScriptedResponse([b"<html>"], 200, {"Content-Type": "text/html"}), {}, "does not list its models"),
        (refusal(200, {"data": [{"id": "a"}, {"id": "b"}]}), {}, "a, b.*ENGINE_REMOTE_MODEL"),
        (refusal(200, {"data": [{"id": "a"}]}), {"remote_model": "x"}, "does not serve x, only a"),
        (refusal(307, {}, Location="http://elsewhere/v1"), {}, "http://elsewhere/v1"),
    ],
)
async def test_what_can_never_work_is_said_at_the_start(
    server: ScriptedServer, connect: Connect, answer: ScriptedResponse, settings: dict[str, Any], match: str
) -> None:
    server.on["/v1/models"] = answer
    with pytest.raises(ModelLoadError, match=match):
        await connect(server, **settings)


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://host", "http://", "http://u:p@host", "http://host/v1?key=1"])
def test_addresses_that_are_none(url: str) -> None:
    with pytest.raises(ModelLoadError, match="ENGINE_REMOTE_URL"):
        RemoteEngine(EngineSettings(_env_file=None, remote_url=url))


def test_words_that_only_an_engine_here_could_keep_out() -> None:
    with pytest.raises(ModelLoadError, match="ENGINE_FORBIDDEN_WORDS"):
        RemoteEngine(EngineSettings(_env_file=None, remote_url="http://a", forbidden_words="darn"))


async def test_draining_and_stopping(server: ScriptedServer, connect: Connect) -> None:
    engine = await connect(server)
    gate = asyncio.Event()
    server.say(reply(chunk("a"), gate, chunk("b", "stop"), DONE), reply(chunk("a"), NEVER()))
    one, two = engine.chat(HI), engine.chat(HI)
    await anext(one)
    await anext(two)
    assert not await engine.drain(0.05)
    with pytest.raises(EngineStoppedError, match="shutting down"):
        await said(engine)
    gate.set()
    assert text_of(await read(one)) == "b"
    assert not await engine.drain(0.05)
    await engine.stop()
    with pytest.raises(ReplyInterruptedError):
        await read(two)
    assert await engine.drain(5.0)


async def test_numbers(server: ScriptedServer, connect: Connect) -> None:
    engine = await connect(server)
    server.say(reply(chunk("a"), chunk("b"), chunk(None, "stop"), usage(20, 2, cached=16), DONE))
    await read(engine.chat(HI))
    stats = engine.stats()
    assert (stats.prompt_tokens, stats.cached_prompt_tokens, stats.generation_tokens) == (20, 16, 2)
    assert stats.requests_finished["stop"] == 1
    assert stats.state is EngineState.READY
    told = generate_latest(engine.registry).decode()
    for line in ("deskmate_time_to_first_token_seconds_count 1.0", "deskmate_generation_tokens_total 2.0",
                 f'deskmate_remote_requests_running{{server="{server.label}"}} 0.0'):  # fmt: skip
        assert line in told


def test_neither_torch_nor_transformers_is_needed() -> None:
    look = "import sys, engine; engine.RemoteEngine; print([m for m in ('torch', 'transformers') if m in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True, timeout=120)
    assert shown.stdout.strip() == "[]"


# -- tokens -----------------------------------------------------------------------------------------------


async def test_tokens_are_told_by_servers_that_tell_them(server: ScriptedServer, connect: Connect) -> None:
    server.on["/tokenize"] = refusal(200, {"count": 2, "max_model_len": 100, "tokens": [7, 8]})
    server.on["/detokenize"] = refusal(200, {"prompt": "hi"})
    engine = await connect(server)
    assert await engine.tokenize("hi", add_special_tokens=False) == (7, 8)
    assert server.other_requests[-1].body == {"prompt": "hi", "add_special_tokens": False, "model": "m"}
    assert await engine.tokenize(HI) == (7, 8)
    assert server.other_requests[-1].body["messages"] == HI
    assert await engine.detokenize([7, 8]) == "hi"
    assert server.other_requests[-1].body == {"tokens": [7, 8], "model": "m"}
    with pytest.raises(InvalidRequestError, match="return_token_strs"):
        await engine.token_strings([7])


async def test_tokens_of_a_server_that_does_not_tell_them(connect: Connect) -> None:
    async with ScriptedServer(owned_by="someone") as plain:
        engine = await connect(plain)
        with pytest.raises(InvalidRequestError, match="cannot tokenize"):
            await engine.tokenize("hi")
        with pytest.raises(InvalidRequestError, match="cannot tokenize"):
            await engine.detokenize([7])


async def test_a_name_goes_with_its_message(server: ScriptedServer, connect: Connect) -> None:
    engine = await connect(server)
    await read(engine.chat([{"role": "user", "content": "hi", "name": "Ann"}]))
    assert server.generation_requests[0].body["messages"] == [{"role": "user", "content": "hi", "name": "Ann"}]


async def test_more_log_probabilities_than_this_server_allows_are_not_asked_for(
    server: ScriptedServer, connect: Connect
) -> None:
    engine = await connect(server, max_logprobs=5)
    with pytest.raises(InvalidRequestError, match="ENGINE_MAX_LOGPROBS"):
        await said(engine, logprobs=6)
    assert server.generation_requests == []
