"""``POST /v1/responses``: what reaches the engine, what is refused and where, and what a client reads."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
import pytest_asyncio
from openai.types.responses import Response as OpenAIResponse
from pydantic import BaseModel

from app.api.openai.fields import MAX_ENTRIES
from engine import (
    ChatOptions,
    EngineError,
    EngineOverloadedError,
    FinishReason,
    NamedTool,
    StructuredOutput,
    StructureKind,
    Tool,
    ToolCall,
    ToolCallDelta,
    ToolChoiceMode,
)
from testing.fake_engine import Piece, Thought, call_pieces
from testing.json_events import parse_json_events
from testing.waiting import eventually
from tests.app.live_server import RunningApp

pytestmark = pytest.mark.asyncio(loop_scope="module")

CITY: dict[str, Any] = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER: dict[str, Any] = {"type": "function", "name": "weather", "parameters": CITY}
CALL: dict[str, Any] = {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city": "Oslo"}'}
OUTPUT: dict[str, Any] = {"type": "function_call_output", "call_id": "c1", "output": "Rain"}
THINKS_AND_CALLS: tuple[Piece, ...] = (
    Thought("Let me "),
    Thought("see."),
    "I look ",
    "it up.",
    *call_pieces("weather", '{"ci', 'ty": "Oslo"}'),
    *call_pieces("now", "{}", index=1),
)


@pytest_asyncio.fixture(loop_scope="module")
async def client(live: RunningApp) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{live.url}/v1", api_key="unused", max_retries=0) as client:
        yield client


async def post(live: RunningApp, **fields: Any) -> Any:
    body = json.dumps({"input": "Hi", **fields})  # httpx itself refuses what a test sends as wrong text
    return await live.http.post("/v1/responses", content=body, headers={"Content-Type": "application/json"})


async def test_a_text_is_answered(live: RunningApp, client: openai.AsyncOpenAI) -> None:
    answer = await client.responses.create(
        model="fake", input="Hi", instructions="Be brief.", metadata={"ticket": "7"}, temperature=0.5
    )
    assert live.engine.calls[0][0] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
    ]
    assert answer.output_text == "Hello, world."
    assert answer.status == "completed"
    assert answer.id.startswith("resp_")
    assert (answer.metadata, answer.instructions, answer.model) == ({"ticket": "7"}, "Be brief.", "fake")
    assert (answer.temperature, answer.top_p) == (0.5, 0.95)  # the second is the model's own
    assert answer.usage is not None
    assert answer.usage.to_dict() == {
        "input_tokens": 5,
        "input_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 0},
        "output_tokens": 4,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 9,
    }


async def test_the_response_has_the_types_that_the_client_declares(live: RunningApp) -> None:
    live.engine.say(*THINKS_AND_CALLS)
    answer = await post(live, tools=[{**WEATHER, "strict": True}], text={"format": {"type": "json_object"}})
    OpenAIResponse.model_validate(answer.json(), strict=True)


async def test_items_become_the_messages_of_a_template(live: RunningApp) -> None:
    items = [
        {"role": "developer", "content": "Answer in English."},
        {
            "role": "user",
            "content": [{"type": "input_text", "text": "Weather in"}, {"type": "input_text", "text": "Oslo?"}],
        },
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Look up."}]},
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "Wait.", "annotations": []}],
        },
        CALL,
        {**CALL, "call_id": "c2", "arguments": ""},
        OUTPUT,
        {**OUTPUT, "call_id": "c2", "output": [{"type": "input_text", "text": "Sun"}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Two results."}], "encrypted_content": "x"},
        {"role": "assistant", "content": "Rain or sun."},
        {"role": "assistant", "content": "Sorry."},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Look again."}]},
        {"role": "assistant", "content": "Rain."},
        {"role": "user", "content": "Sure?"},
    ]
    answer = await post(live, input=items, instructions="Be brief.")
    assert answer.status_code == 200, answer.text
    assert live.engine.calls[0][0] == [
        {"role": "system", "content": "Be brief.\n\nAnswer in English."},
        {"role": "user", "content": "Weather in\nOslo?"},
        {
            "role": "assistant",
            "content": "Wait.",
            "reasoning": "Look up.",
            "tool_calls": (
                ToolCall("c1", "weather", '{"city": "Oslo"}'),
                ToolCall("c2", "weather", "{}"),
            ),
        },
        {"role": "tool", "content": "Rain", "tool_call_id": "c1"},
        {"role": "tool", "content": "Sun", "tool_call_id": "c2"},
        {"role": "assistant", "content": "Rain or sun.", "reasoning": "Two results."},
        {"role": "assistant", "content": "Sorry."},
        {"role": "assistant", "content": "Rain.", "reasoning": "Look again."},
        {"role": "user", "content": "Sure?"},
    ]


async def test_the_output_can_be_sent_back_unchanged(live: RunningApp, client: openai.AsyncOpenAI) -> None:
    live.engine.say(*THINKS_AND_CALLS)
    first = await client.responses.create(model="fake", input="Weather?", tools=[WEATHER])  # type: ignore[list-item]
    results: list[Any] = [
        {"type": "function_call_output", "call_id": item.call_id, "output": "Rain"}
        for item in first.output
        if item.type == "function_call"
    ]
    await client.responses.create(
        model="fake",
        input=[{"role": "user", "content": "Weather?"}, *first.output, *results],  # type: ignore[list-item]
    )
    assert live.engine.calls[1][0][1] == {
        "role": "assistant",
        "content": "I look it up.",
        "reasoning": "Let me see.",
        "tool_calls": (
            ToolCall("call_weather_0", "weather", '{"city": "Oslo"}'),
            ToolCall("call_now_1", "now", "{}"),
        ),
    }


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, ChatOptions()),
        (
            {"tools": [{**WEATHER, "strict": True, "description": "Of a city."}], "tool_choice": "required"},
            ChatOptions(tools=(Tool("weather", "Of a city.", CITY, strict=True),), tool_choice=ToolChoiceMode.REQUIRED),
        ),
        (
            {"tools": [WEATHER], "tool_choice": {"type": "function", "name": "weather"}, "parallel_tool_calls": False},
            ChatOptions(
                tools=(Tool("weather", "", CITY),), tool_choice=NamedTool("weather"), parallel_tool_calls=False
            ),
        ),
        ({"reasoning": {"effort": "high", "summary": "auto"}}, ChatOptions(reasoning_effort="high")),
        ({"reasoning": {"effort": "none"}}, ChatOptions(thinking=False)),
        ({"enable_thinking": False}, ChatOptions(thinking=False)),
        (
            {"thinking_token_budget": 5, "stop_in_reasoning": True},
            ChatOptions(max_thinking_tokens=5, stop_in_reasoning=True),
        ),
    ],
)
async def test_options(live: RunningApp, fields: dict[str, Any], expected: ChatOptions) -> None:
    answer = await post(live, **fields)
    assert answer.status_code == 200, answer.text
    assert live.engine.options == [expected]


@pytest.mark.parametrize(
    ("fields", "name", "expected"),
    [
        ({"max_output_tokens": 7.0}, "max_tokens", 7),
        ({"top_k": 3}, "top_k", 3),
        ({"logit_bias": {"4": 1}}, "logit_bias", {4: 1.0}),
        ({"stop": ["a"]}, "stop", ("a",)),
        ({"top_logprobs": 2}, "logprobs", 2),
        ({"include": ["message.output_text.logprobs"]}, "logprobs", 0),
        ({"include": ["reasoning.encrypted_content"]}, "logprobs", None),
        ({"text": {"format": {"type": "text"}}}, "structured", None),
        ({"text": {"format": {"type": "json_object"}}}, "structured", StructuredOutput(StructureKind.JSON_OBJECT)),
        (
            {"text": {"format": {"type": "json_schema", "name": "city", "strict": True, "schema": CITY}}},
            "structured",
            StructuredOutput(StructureKind.JSON_SCHEMA, json.dumps(CITY)),
        ),
        ({"structured_outputs": {"regex": "a+"}}, "structured", StructuredOutput(StructureKind.REGEX, "a+")),
    ],
)
async def test_sampling(live: RunningApp, fields: dict[str, Any], name: str, expected: Any) -> None:
    answer = await post(live, **fields)
    assert answer.status_code == 200, answer.text
    assert getattr(live.engine.calls[0][1], name) == expected


@pytest.mark.parametrize(
    "fields",
    [
        {"background": False, "conversation": None, "prompt": None, "user": "u", "truncation": "disabled"},
        {"service_tier": "auto", "safety_identifier": "s", "prompt_cache_key": "k", "max_tool_calls": 3},
        {"text": {"verbosity": "medium"}, "stream_options": {"include_obfuscation": False}, "n": 1, "stop": None},
        {"reasoning": None, "include": [], "tools": [], "metadata": {}, "context_management": []},
    ],
)
async def test_fields_that_ask_for_nothing(live: RunningApp, fields: dict[str, Any]) -> None:
    answer = await post(live, **fields)
    assert answer.status_code == 200, answer.text
    assert "X-Ignored-Fields" not in answer.headers


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"background": True}, "background", "background"),
        ({"conversation": "conv_1"}, "conversation", "input"),
        ({"prompt": {"id": "p"}}, "prompt", "instructions"),
        ({"n": 2}, "n", "not supported"),
        ({"best_of": 2}, "best_of", "not supported"),
        ({"use_beam_search": True}, "use_beam_search", "beam search"),
        ({"max_tokens": 5}, "max_tokens", "max_output_tokens"),
        ({"response_format": {"type": "json_object"}}, "response_format", "text.format"),
        ({"reasoning_effort": "low"}, "reasoning_effort", "reasoning.effort"),
        ({"messages": []}, "messages", "send that instead"),
        ({"context_management": [{"type": "compaction"}]}, "context_management", "not supported"),
        ({"service_tier": "flex"}, "service_tier", "tier"),
        ({"text": {"verbosity": "low"}}, "text.verbosity", "not supported"),
        ({"reasoning": {"summary": "detailed"}}, "reasoning.summary", "in full"),
        ({"reasoning": {"effort": "enormous"}}, "reasoning.effort", "must be"),
        ({"reasoning": {"effort": "none"}, "enable_thinking": True}, "enable_thinking", "contradict"),
        ({"include": ["file_search_call.results"]}, "include[0]", "file_search_call.results"),
        ({"include": "x"}, "include", "list"),
        ({"metadata": {"a": 1}}, "metadata.a", "string"),
        ({"metadata": {"a": "x" * 513}}, "metadata.a", "512"),
        ({"metadata": {"x" * 65: "a"}}, "metadata", "64"),
        ({"metadata": {str(number): "a" for number in range(17)}}, "metadata", "16"),
        ({"max_output_tokens": 0}, "max_output_tokens", "at least 1"),
        ({"top_logprobs": 21}, "top_logprobs", "20"),
        ({"top_logprobs": -1}, "top_logprobs", "0"),
        ({"temperature": -1}, "temperature", "0"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format", "needs a schema"),
        ({"text": {"format": {"type": "yaml"}}}, "text.format.type", "json_schema"),
        (
            {"text": {"format": {"type": "json_object"}}, "structured_outputs": {"regex": "a"}},
            "structured_outputs",
            "not both",
        ),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type", "'web_search'"),
        ({"tools": [WEATHER, {"type": "mcp", "server_url": "https://a"}]}, "tools[1].type", "'mcp'"),
        ({"tools": [{"type": "function"}]}, "tools[0].name", "missing"),
        ({"tools": [{**WEATHER, "parameters": {"type": "array"}}]}, "tools[0].parameters.type", "object"),
        ({"tools": [WEATHER, WEATHER]}, "tools[1].name", "repeats"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function", "name": "x"}}, "tool_choice", "lacks"),
        ({"tools": [WEATHER], "tool_choice": {"type": "web_search"}}, "tool_choice", "must be"),
        ({"tool_choice": "required"}, "tool_choice", "empty"),
        ({"input": None}, "input", "a string or a list"),
        ({"input": ["Hi"]}, "input[0]", "an object"),
        ({"input": [{}]}, "input[0].type", "missing"),
        ({"previous_response_id": 5}, "previous_response_id", "string"),
        ({"input": [{"type": 5}]}, "input[0].type", "no string"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0].id", "no stored response"),
        ({"input": []}, "input", "missing or empty"),
        ({"store": "yes"}, "store", "true or false"),
        ({"input": [{"role": "user", "content": "a"}, {"type": "web_search_call"}]}, "input[1].type", "one of message"),
        ({"input": [{"role": "tool", "content": "a"}]}, "input[0].role", "must be"),
        ({"input": [{"role": "user"}]}, "input[0].content", "missing"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            "input[0].content[0]",
            "image",
        ),
        ({"input": [{"role": "user", "content": "\ud83d"}]}, "input[0].content", "surrogate"),
        ({"input": "\ud83d"}, "input", "surrogate"),
        ({"input": [{**CALL, "arguments": "{"}]}, "input[0].arguments", "JSON"),
        ({"input": [{**CALL, "call_id": ""}]}, "input[0].call_id", "at least 1"),
        ({"input": [OUTPUT]}, "input[0].call_id", "no function_call before it"),
        ({"input": [OUTPUT, CALL]}, "input[0].call_id", "no function_call before it"),
        ({"input": [CALL, {**OUTPUT, "call_id": "c2"}]}, "input[1].call_id", "'c2'"),
        ({"input": [CALL, {**OUTPUT, "output": 5}]}, "input[1].output", "a string"),
        (
            {"input": [{"type": "reasoning", "content": [{"type": "text", "text": "a"}]}]},
            "input[0].content[0].type",
            "reasoning_text",
        ),
        ({"input": [{"role": "user", "content": "a"}] * (MAX_ENTRIES + 1)}, "input", str(MAX_ENTRIES)),
        ({"model": "other"}, "model", "does not exist"),
    ],
)
async def test_what_cannot_be_asked_is_refused_at_its_place(
    live: RunningApp, fields: dict[str, Any], param: str, says: str
) -> None:
    answer = await post(live, **fields)
    assert answer.status_code == (404 if param == "model" else 400), answer.text
    error = answer.json()["error"]
    assert error["param"] == param, error
    assert says in error["message"], error
    assert live.engine.calls == []


async def test_an_adapter_is_chosen_by_its_name(live: RunningApp) -> None:
    live.engine.list_adapters("poet")
    for fields in ({}, {"truncation": "auto"}):
        answer = await post(live, model="poet", **fields)
        assert answer.json()["model"] == "poet"
    assert (await post(live, model="fake")).json()["model"] == "fake"
    assert live.engine.adapters == ["poet", "poet", None]


async def test_unknown_fields_are_listed(live: RunningApp) -> None:
    answer = await post(live, sunshine=1, input=[{"role": "user", "content": "a", "mood": "good"}])
    assert answer.headers["X-Ignored-Fields"] == "sunshine, input[0].mood"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 10**40, "\ud83d"])
async def test_values_in_a_schema_that_json_may_lack(live: RunningApp, value: Any) -> None:
    """They would come back in the response, which repeats the schema."""
    schema = {"type": "object", "properties": {"a": {"default": value}}}
    requests: list[dict[str, Any]] = [
        {"tools": [{**WEATHER, "parameters": schema}]},
        {"text": {"format": {"type": "json_schema", "name": "a", "schema": schema}}},
    ]
    for request in requests:
        for stream in (False, True):
            answer = await post(live, stream=stream, **request)
            if value == 10**40:
                assert answer.status_code == 200
                assert str(value) in answer.text
            else:
                assert answer.status_code == 400, answer.text
                assert live.engine.calls == []


async def test_a_long_conversation_is_refused_or_truncated(live: RunningApp) -> None:
    long = {"role": "user", "content": "word " * 5000}
    items = [long, {"role": "assistant", "content": "Yes."}, {"role": "user", "content": "Now?"}]
    answer = await post(live, input=items)
    assert answer.json()["error"]["code"] == "context_length_exceeded"
    assert answer.json()["error"]["param"] == "input"
    answer = await post(live, input=items, truncation="auto")
    assert answer.status_code == 200, answer.text
    assert live.engine.calls[0][0] == [{"role": "user", "content": "Now?"}]


async def test_a_stream_is_openais(live: RunningApp) -> None:
    live.engine.say(*THINKS_AND_CALLS)
    answer = await post(live, tools=[WEATHER], stream=True)
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert b"[DONE]" not in answer.content
    events = parse_json_events(answer.content)
    assert [event.data["sequence_number"] for event in events] == [*range(len(events))]
    assert all(event.name == event.data["type"] for event in events)
    part = ["response.output_item.added", "response.content_part.added"]
    done = ["response.content_part.done", "response.output_item.done"]
    call = "response.function_call_arguments"
    assert [event.name for event in events] == [
        *("response.created", "response.in_progress"),
        *(*part, *["response.reasoning_text.delta"] * 2, "response.reasoning_text.done", *done),
        *(*part, *["response.output_text.delta"] * 2, "response.output_text.done", *done),
        *("response.output_item.added", f"{call}.delta", f"{call}.delta", f"{call}.done", "response.output_item.done"),
        *("response.output_item.added", f"{call}.delta", f"{call}.done", "response.output_item.done"),
        "response.completed",
    ]
    assert events[0].data["response"]["status"] == "in_progress"
    assert events[0].data["response"]["output"] == []
    response = events[-1].data["response"]
    assert response["status"] == "completed"
    assert [event.data["item"] for event in events if event.name == "response.output_item.done"] == response["output"]
    opened = [event.data["item"] for event in events if event.name == "response.output_item.added"]
    assert [item["id"] for item in opened] == [item["id"] for item in response["output"]]
    assert len({item["id"] for item in opened}) == 4
    for item in opened:
        written = "".join(
            event.data["delta"] for event in events if event.data.get("item_id") == item["id"] and "delta" in event.data
        )
        whole = next(one for one in response["output"] if one["id"] == item["id"])
        assert written == (whole["arguments"] if "arguments" in whole else whole["content"][0]["text"])
    live.engine.say(*THINKS_AND_CALLS)
    unstreamed = (await post(live, tools=[WEATHER])).json()
    changing = {"id", "created_at", "completed_at"}
    assert {key: value for key, value in unstreamed.items() if key not in {*changing, "output"}} == {
        key: value for key, value in response.items() if key not in {*changing, "output"}
    }


async def test_the_helpers_of_the_client(live: RunningApp, client: openai.AsyncOpenAI) -> None:
    live.engine.say(*THINKS_AND_CALLS)
    asked: dict[str, Any] = {"model": "fake", "input": "Weather?", "tools": [{**WEATHER, "strict": True}]}
    async with client.responses.stream(**asked) as stream:
        snapshots = [event.snapshot async for event in stream if event.type == "response.function_call_arguments.delta"]
        final = await stream.get_final_response()
    assert snapshots[:2] == ['{"ci', '{"city": "Oslo"}']
    assert final.output_text == "I look it up."
    calls = [item for item in final.output if item.type == "function_call"]
    assert calls[0].parsed_arguments == {"city": "Oslo"}


class City(BaseModel):
    city: str


async def test_the_client_parses_an_object_of_a_schema(live: RunningApp, client: openai.AsyncOpenAI) -> None:
    live.engine.say('{"city": ', '"Oslo"}')
    parsed = await client.responses.parse(model="fake", input="Where?", text_format=City)
    assert parsed.output_parsed == City(city="Oslo")
    structured = live.engine.calls[0][1].structured  # type: ignore[union-attr]
    assert structured is not None
    assert json.loads(structured.definition)["required"] == ["city"]
    assert parsed.text is not None
    assert parsed.text.format is not None
    assert parsed.text.format.type == "json_schema"
    live.engine.say('{"city": ', '"Oslo"}')
    async with client.responses.stream(model="fake", input="Where?", text_format=City) as stream:
        assert (await stream.get_final_response()).output_parsed == City(city="Oslo")


@pytest.mark.parametrize(
    ("reason", "details"),
    [
        (FinishReason.LENGTH, {"reason": "max_output_tokens"}),
        (FinishReason.DEADLINE, {"reason": "max_output_tokens", "stop_reason": "deadline"}),
    ],
)
async def test_a_reply_that_was_cut_off_is_incomplete(
    live: RunningApp, reason: FinishReason, details: dict[str, str]
) -> None:
    for stream in (False, True):
        live.engine.say("I look ", *call_pieces("weather", '{"ci'), finish_reason=reason)
        answer = await post(live, tools=[WEATHER], stream=stream)
        response = parse_json_events(answer.content)[-1].data["response"] if stream else answer.json()
        assert response["status"] == "incomplete"
        assert response["incomplete_details"] == details
        assert response["completed_at"] is None
        assert [item["status"] for item in response["output"]] == ["completed", "incomplete"]
        assert not stream or parse_json_events(answer.content)[-1].name == "response.incomplete"


@pytest.mark.parametrize("pieces", [("",), (Thought("Hm."),)])
async def test_an_empty_answer_is_a_message_all_the_same(live: RunningApp, pieces: tuple[Any, ...]) -> None:
    live.engine.say(*pieces)
    output = (await post(live)).json()["output"]
    assert [part["text"] for part in output[-1]["content"]] == [""]
    live.engine.say(*pieces, finish_reason=FinishReason.LENGTH)
    assert not any(item["type"] == "message" for item in (await post(live)).json()["output"])


async def test_an_error_on_the_way_fails_the_stream(live: RunningApp, client: openai.AsyncOpenAI) -> None:
    live.engine.say("Hel", "lo", fail_at=1)
    events = parse_json_events((await post(live, stream=True)).content)
    assert [event.name for event in events[-2:]] == ["response.failed", "error"]
    failed = events[-2].data["response"]
    assert failed["status"] == "failed"
    assert failed["error"]["code"] == "server_error"
    assert "out of memory" in failed["error"]["message"]
    assert failed["output"][0]["content"][0]["text"] == "Hel"
    live.engine.say("Hel", "lo", fail_at=1)
    stream = await client.responses.create(model="fake", input="Hi", stream=True)
    with pytest.raises(openai.APIError, match="out of memory"):
        [event.type async for event in stream]
    live.engine.say("Hel", "lo", fail_at=1)
    answer = await post(live)
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "engine_error")


async def test_parts_of_several_calls_in_turns_are_an_error(live: RunningApp) -> None:
    live.engine.say(*call_pieces("a", "{"), *call_pieces("b", "{", index=1), ToolCallDelta(0, "}"))
    answer = await post(live, tools=[WEATHER])
    assert answer.status_code == 500
    assert "mixed" in answer.json()["error"]["message"]


async def test_a_refusal_has_its_own_status_also_in_a_stream(live: RunningApp) -> None:
    live.engine.refuse = EngineOverloadedError("Too many requests are waiting.")
    for stream in (False, True):
        answer = await post(live, stream=stream)
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
    live.engine.refuse = EngineError("Broken.")
    assert (await post(live, stream=True)).status_code == 500


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_aborts_its_reply(live: RunningApp, stream: bool) -> None:
    live.engine.say("a", "b", gates={1: asyncio.Event()})
    asking = asyncio.create_task(post(live, stream=stream))
    await live.engine.started.wait()
    await asyncio.sleep(0.05)
    asking.cancel()
    await eventually(lambda: live.engine.aborted == 1 and live.engine.running == 0)
    assert (live.engine.aborted, live.engine.running) == (1, 0)


async def test_replies_in_parallel_keep_apart(live: RunningApp, client: openai.AsyncOpenAI) -> None:
    gate = asyncio.Event()
    live.engine.say("one", " more", gates={1: gate})
    first = asyncio.create_task(client.responses.create(model="fake", input="First"))
    await live.engine.started.wait()
    live.engine.say("two", *call_pieces("now", "{}"))
    second = await client.responses.create(model="fake", input="Second")
    gate.set()
    assert ((await first).output_text, second.output_text) == ("one more", "two")
    assert (await first).id != second.id
