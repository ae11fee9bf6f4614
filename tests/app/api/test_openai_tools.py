"""Tools in ``/v1/chat/completions``: what reaches the engine, what is refused and where, and what a client reads."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
import pytest_asyncio
from pydantic import BaseModel

from app.api.openai import json_schemas
from app.api.openai.json_schemas import MAX_SCHEMA_BYTES, MAX_SCHEMA_DEPTH
from app.api.openai.tools import MAX_ARGUMENTS_BYTES, MAX_TOOLS
from engine import ChatOptions, FinishReason, NamedTool, Tool, ToolCall, ToolChoiceMode
from testing.fake_engine import call_pieces
from testing.json_events import parse_json_events
from tests.app.live_server import RunningApp

pytestmark = pytest.mark.asyncio(loop_scope="module")

CITY: dict[str, Any] = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
HELLO: list[Any] = [{"role": "user", "content": "What is the weather in Oslo?"}]
CALL: dict[str, Any] = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "weather", "arguments": '{"city": "Oslo"}'},
}
CALLED: list[Any] = [*HELLO, {"role": "assistant", "content": None, "tool_calls": [CALL]}]


def function(name: str = "weather", parameters: Any = CITY, **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters, **fields}}


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": "fake", "messages": HELLO, **fields}


@pytest_asyncio.fixture(loop_scope="module")
async def client(live: RunningApp) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{live.url}/v1", api_key="unused", max_retries=0) as client:
        yield client


async def post(live: RunningApp, **fields: Any) -> Any:
    return await live.http.post("/v1/chat/completions", json=chat(**fields))


async def test_tools_reach_the_engine(live: RunningApp, client: openai.AsyncOpenAI) -> None:
    tools: list[Any] = [function(description="Weather of a city.", strict=True), function("now", None)]
    await client.chat.completions.create(
        model="fake",
        messages=HELLO,
        tools=tools,
        tool_choice={"type": "function", "function": {"name": "now"}},
        parallel_tool_calls=False,
    )
    options = live.engine.options[0]
    assert options.tools == (Tool("weather", "Weather of a city.", CITY, strict=True), Tool("now"))
    assert options.tool_choice == NamedTool("now")
    assert not options.parallel_tool_calls
    for choice in ToolChoiceMode:
        await client.chat.completions.create(model="fake", messages=HELLO, tools=tools, tool_choice=choice.value)
        assert live.engine.options[-1].tool_choice is choice
    await client.chat.completions.create(model="fake", messages=HELLO, tools=tools)
    assert live.engine.options[-1].tool_choice is ToolChoiceMode.AUTO
    assert live.engine.options[-1].parallel_tool_calls


async def test_calls_and_their_results_reach_the_engine(live: RunningApp, client: openai.AsyncOpenAI) -> None:
    result: Any = {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "Rain"}]}
    await client.chat.completions.create(model="fake", messages=[*CALLED, result])
    assert live.engine.calls[0][0][1:] == [
        {"role": "assistant", "content": "", "tool_calls": (ToolCall("call_1", "weather", '{"city": "Oslo"}'),)},
        {"role": "tool", "content": "Rain", "tool_call_id": "call_1"},
    ]


@pytest.mark.parametrize(("arguments", "expected"), [("", "{}"), ({"a": "é"}, '{"a": "é"}'), (" {} ", " {} ")])
async def test_arguments_of_any_client_are_json(live: RunningApp, arguments: Any, expected: str) -> None:
    call = {"id": "1", "index": 0, "function": {"name": "f", "arguments": arguments}}
    answer = await post(live, messages=[*HELLO, {"role": "assistant", "tool_calls": [call]}, *HELLO])
    assert answer.status_code == 200, answer.text
    assert live.engine.calls[0][0][1]["tool_calls"][0].arguments == expected


@pytest.mark.parametrize("text", [(), ("I look ", "it up.")])
async def test_a_reply_that_calls_tools(live: RunningApp, client: openai.AsyncOpenAI, text: tuple[str, ...]) -> None:
    live.engine.say(*text, *call_pieces("weather", '{"ci', 'ty": "Oslo"}'), *call_pieces("now", "{}", index=1))
    reply = await client.chat.completions.create(model="fake", messages=HELLO, tools=[function()])  # type: ignore[list-item]
    message: Any = reply.choices[0].message
    assert reply.choices[0].finish_reason == "tool_calls"
    assert message.content == ("".join(text) or None)
    assert message.tool_calls is not None
    assert [(call.id, call.type, call.function.name, call.function.arguments) for call in message.tool_calls] == [
        ("call_weather_0", "function", "weather", '{"city": "Oslo"}'),
        ("call_now_1", "function", "now", "{}"),
    ]
    results: list[Any] = [{"role": "tool", "tool_call_id": call.id, "content": "x"} for call in message.tool_calls]
    await client.chat.completions.create(model="fake", messages=[*HELLO, message.model_dump(), *results])
    assert [call.name for call in live.engine.calls[1][0][1]["tool_calls"]] == ["weather", "now"]


async def test_a_stream_of_calls_is_openais(live: RunningApp) -> None:
    live.engine.say("Hm. ", *call_pieces("weather", '{"ci', 'ty": "Oslo"}'), *call_pieces("now", "{}", index=1))
    answer = await post(live, tools=[function()], stream=True, return_token_ids=True)
    choices = [event.data["choices"][0] for event in parse_json_events(answer.content)]
    assert [choice["delta"] for choice in choices] == [
        {"role": "assistant", "content": "", "refusal": None},
        {"content": "Hm. "},
        {"tool_calls": [_opening(0, "weather")]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"ci'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": 'ty": "Oslo"}'}}]},
        {"tool_calls": [_opening(1, "now")]},
        {"tool_calls": [{"index": 1, "function": {"arguments": "{}"}}]},
        {},
    ]
    assert [choice["finish_reason"] for choice in choices] == [None] * 7 + ["tool_calls"]
    assert [token for choice in choices for token in choice["token_ids"]] == list(range(6))


def _opening(index: int, name: str) -> dict[str, Any]:
    function = {"name": name, "arguments": ""}
    return {"index": index, "id": f"call_{name}_{index}", "type": "function", "function": function}


async def test_the_clients_helper_reads_the_stream(live: RunningApp, client: openai.AsyncOpenAI) -> None:
    live.engine.say(*call_pieces("weather", '{"ci', 'ty": "Oslo"}'))
    async with client.chat.completions.stream(model="fake", messages=HELLO, tools=[function()]) as stream:  # type: ignore[list-item]
        events = [event async for event in stream]
        final = await stream.get_final_completion()
    done = [event for event in events if event.type == "tool_calls.function.arguments.done"]
    assert [(event.name, event.arguments) for event in done] == [("weather", '{"city": "Oslo"}')]
    assert final.choices[0].finish_reason == "tool_calls"


class Weather(BaseModel):
    city: str


async def test_the_clients_helper_parses_arguments(live: RunningApp, client: openai.AsyncOpenAI) -> None:
    live.engine.say(*call_pieces("Weather", '{"city": "Oslo"}'))
    reply = await client.chat.completions.parse(
        model="fake", messages=HELLO, tools=[openai.pydantic_function_tool(Weather)]
    )
    calls = reply.choices[0].message.tool_calls
    assert calls is not None
    assert calls[0].function.parsed_arguments == Weather(city="Oslo")
    tool = live.engine.options[0].tools[0]
    assert tool.strict
    assert tool.parameters is not None
    assert tool.parameters["additionalProperties"] is False


@pytest.mark.parametrize("reason", [FinishReason.LENGTH, FinishReason.DEADLINE])
async def test_a_call_that_was_cut_off_ends_with_length(live: RunningApp, reason: FinishReason) -> None:
    live.engine.say(*call_pieces("weather", '{"ci'), finish_reason=reason)
    choice = (await post(live, tools=[function()])).json()["choices"][0]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["tool_calls"][0]["function"]["arguments"] == '{"ci'


async def test_a_reply_without_calls_has_no_such_field(live: RunningApp) -> None:
    choice = (await post(live, tools=[function()])).json()["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": "Hello, world.", "refusal": None}
    assert choice["finish_reason"] == "stop"


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"tools": "f"}, "tools", "list"),
        ({"tools": [function(), 5]}, "tools[1]", "object"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type", "'web_search'"),
        ({"tools": [{"type": 5}]}, "tools[0].type", "function"),
        ({"tools": [{"type": "function"}]}, "tools[0].function", "missing"),
        ({"tools": [function("a b")]}, "tools[0].function.name", "regular expression"),
        ({"tools": [function("")]}, "tools[0].function.name", "regular expression"),
        ({"tools": [function("x" * 65)]}, "tools[0].function.name", "regular expression"),
        ({"tools": [function(), function()]}, "tools[1].function.name", "repeats the name"),
        ({"tools": [function(str(number)) for number in range(MAX_TOOLS + 1)]}, "tools", f"maximum is {MAX_TOOLS}"),
        ({"tools": [function(parameters=[])]}, "tools[0].function.parameters", "JSON schema"),
        ({"tools": [function(parameters={"type": "string"})]}, "tools[0].function.parameters.type", '"object"'),
        (
            {"tools": [function(parameters={"properties": {"a": {"type": "text"}}})]},
            "tools[0].function.parameters.properties.a.type",
            "one of array",
        ),
        (
            {"tools": [function(parameters={"properties": {"a": {"items": 5}}})]},
            "tools[0].function.parameters.properties.a.items",
            "JSON schema",
        ),
        ({"tools": [function(parameters={"properties": []})]}, "tools[0].function.parameters.properties", "names to"),
        (
            {"tools": [function(parameters={"anyOf": [{}, {"required": True}]})]},
            "tools[0].function.parameters.anyOf[1].required",
            "list of property names",
        ),
        ({"tools": [function(parameters={"oneOf": []})]}, "tools[0].function.parameters.oneOf", "at least one"),
        (
            {"tools": [function(parameters={"properties": {"a": {"$ref": "#/$defs/b"}}})]},
            "tools[0].function.parameters.properties.a.$ref",
            "leads to no schema",
        ),
        (
            {"tools": [function(parameters={"$ref": "https://example.com/schema"})]},
            "tools[0].function.parameters.$ref",
            "leads to no schema",
        ),
        (
            {"tools": [function(parameters={"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}})]},
            "tools[0].function.parameters.$ref",
            "back to itself",
        ),
        ({"tools": [function(parameters=nested(150))]}, "tools[0].function.parameters", f"than {MAX_SCHEMA_DEPTH}"),
        (
            {"tools": [function(parameters={"description": "x" * MAX_SCHEMA_BYTES})]},
            "tools[0].function.parameters",
            f"maximum is {MAX_SCHEMA_BYTES}",
        ),
        (
            {"tools": [function(str(one), {"title": "x" * 200_000}) for one in range(6)]},
            "tools",
            "more than 524288 bytes",
        ),
        ({"tools": [function(description="\ud800")]}, "tools[0].function.description", "surrogate"),
        ({"tools": [function(parameters={"title": "\ud800"})]}, "tools[0].function.parameters", "surrogate"),
        ({"tools": [function(strict="yes")]}, "tools[0].function.strict", "true or false"),
        ({"tool_choice": "required"}, "tool_choice", "'tools' is empty"),
        ({"tool_choice": "any", "tools": [function()]}, "tool_choice", '"required"'),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}, "tools": [function()]}, "tool_choice", "'f'"),
        ({"tool_choice": {"type": "function"}, "tools": [function()]}, "tool_choice", "must be"),
        ({"tool_choice": {"type": "allowed_tools", "allowed_tools": {}}}, "tool_choice", "list of allowed tools"),
        ({"tool_choice": 5}, "tool_choice", "must be"),
        ({"parallel_tool_calls": "no"}, "parallel_tool_calls", "true or false"),
        ({"functions": [{"name": "f"}]}, "functions", "old form"),
        ({"function_call": {"name": "f"}}, "function_call", "old form"),
        ({"tools": [function()], "separate_reasoning": False}, "separate_reasoning", "cannot go with tools"),
        ({"tools": [function()], "reasoning_format": "none"}, "reasoning_format", "cannot go with tools"),
    ],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/tokenize"])
async def test_tools_that_cannot_be_used_are_refused_at_their_place(
    live: RunningApp, path: str, fields: dict[str, Any], param: str, says: str
) -> None:
    headers = {"Content-Type": "application/json"}
    answer = await live.http.post(path, content=json.dumps(chat(**fields)), headers=headers)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == param, error
    assert says in error["message"]
    assert error["message"].endswith(".")
    assert live.engine.calls == []


@pytest.mark.parametrize("depth", [1_000, 100_000])
async def test_a_schema_nested_without_end_is_refused(live: RunningApp, depth: int) -> None:
    schema = '{"type":"object","properties":{"a":' * depth + "true" + "}}" * depth
    body = json.dumps(chat(tools=[function(parameters="here")])).replace('"here"', schema)
    answer = await live.http.post("/v1/chat/completions", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["type"] == "invalid_request_error"


async def test_a_chain_of_references_is_followed_once(live: RunningApp) -> None:
    """To follow each from its start took seconds, in which no other request was served."""
    end = 3000
    chain = {
        "properties": {f"p{number}": {"$ref": f"#/$defs/{number}"} for number in range(end)},
        "$defs": {**{str(number): {"$ref": f"#/$defs/{number + 1}"} for number in range(end)}, str(end): {}},
    }
    resolved = 0

    def counted(pointer: str, root: dict[str, Any], resolve: Any = json_schemas._resolve) -> object:
        nonlocal resolved
        resolved += 1
        return resolve(pointer, root)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(json_schemas, "_resolve", counted)
        patched.setattr(json_schemas, "MAX_SCHEMA_BYTES", 10**6)
        answer = await post(live, tools=[function(parameters=chain)])
        assert answer.status_code == 200, answer.text
    assert resolved == end + 1


def reply(**call: Any) -> list[Any]:
    return [*HELLO, {"role": "assistant", "tool_calls": [{**CALL, **call}]}]


def result(**fields: Any) -> dict[str, Any]:
    return {"role": "tool", "content": "Rain", "tool_call_id": "call_1", **fields}


_ARGUMENTS = "messages[1].tool_calls[0].function.arguments"


@pytest.mark.parametrize(
    ("messages", "param", "says"),
    [
        (reply(id=""), "messages[1].tool_calls[0].id", "at least 1"),
        (reply(id="x" * 257), "messages[1].tool_calls[0].id", "at most 256"),
        (reply(type="custom"), "messages[1].tool_calls[0].type", "function"),
        (reply(function={"arguments": "{}"}), "messages[1].tool_calls[0].function.name", "missing"),
        (reply(function={"name": "f", "arguments": "{'a'"}), _ARGUMENTS, "not valid JSON"),
        (reply(function={"name": "f", "arguments": "[1]"}), _ARGUMENTS, "hold a JSON object"),
        (reply(function={"name": "f", "arguments": 5}), _ARGUMENTS, "string with a JSON object"),
        (reply(function={"name": "f", "arguments": '{"a":' * 5000 + "1" + "}" * 5000}), _ARGUMENTS, ""),
        (reply(function={"name": "f", "arguments": '{"a":' * 90 + "1" + "}" * 90}), _ARGUMENTS, "levels deep"),
        (
            reply(function={"name": "f", "arguments": json.dumps({"a": "x" * MAX_ARGUMENTS_BYTES})}),
            _ARGUMENTS,
            "bytes",
        ),
        ([*HELLO, result()], "messages[1].tool_call_id", "'call_1'"),
        ([*CALLED, result(tool_call_id="call_2")], "messages[2].tool_call_id", "no reply before it"),
        ([*CALLED, {"role": "tool", "content": "x"}], "messages[2].tool_call_id", "missing"),
        ([*CALLED, {"role": "tool", "tool_call_id": "call_1"}], "messages[2].content", "missing"),
        ([{"role": "user", "content": "x", "tool_calls": [CALL]}], "messages[0].tool_calls", "role 'assistant'"),
        ([{"role": "user", "content": "x", "reasoning": "y"}], "messages[0].reasoning", "role 'assistant'"),
        ([{"role": "assistant", "content": "x", "function_call": {}}], "messages[0].function_call", "old form"),
    ],
)
async def test_calls_that_do_not_fit_are_refused_at_their_place(
    live: RunningApp, messages: list[Any], param: str, says: str
) -> None:
    answer = await post(live, messages=messages)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == param, error
    assert says in error["message"]
    assert live.engine.calls == []


async def test_arguments_of_a_megabyte_are_taken(live: RunningApp) -> None:
    arguments = json.dumps({"a": "x" * (MAX_ARGUMENTS_BYTES - 20)})
    answer = await post(live, messages=[*reply(function={"name": "f", "arguments": arguments}), result()])
    assert answer.status_code == 200, answer.text


async def test_a_schema_that_refers_to_itself_on_its_way_is_a_tree(live: RunningApp) -> None:
    tree = {
        "type": "object",
        "properties": {"children": {"type": "array", "items": {"$ref": "#"}}, "$ref": {"type": "null"}},
    }
    linked = {
        "$ref": "#/$defs/a~1b",
        "$defs": {"a/b": {"type": "object", "properties": {"next": {"$ref": "#/$defs/a~1b"}}}},
    }
    answer = await post(live, tools=[function("tree", tree), function("linked", linked)])
    assert answer.status_code == 200, answer.text


async def test_tokenize_counts_tools(live: RunningApp) -> None:
    assert (await live.http.post("/tokenize", json=chat(tools=[function()], enable_thinking=True))).status_code == 200
    assert live.engine.tokenize_options == [ChatOptions(tools=(Tool("weather", "", CITY),), thinking=True)]
    long = [
        *HELLO,
        {
            "role": "assistant",
            "tool_calls": [{**CALL, "function": {"name": "f", "arguments": '{"a": "' + "x" * 900_000 + '"}'}}],
        },
    ]
    answer = await live.http.post("/tokenize", json=chat(messages=long))
    assert answer.status_code == 400
    assert "characters" in answer.json()["error"]["message"]
