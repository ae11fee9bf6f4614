"""Tools and thinking over model servers elsewhere: what is sent to each kind, and what is made of its chunks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Any

import pytest

from engine import (
    ChatMessage,
    ChatOptions,
    Delta,
    EngineSettings,
    FinishReason,
    NamedTool,
    RemoteEngine,
    ReplyInterruptedError,
    Tool,
    ToolCall,
    ToolChoiceMode,
    UnsupportedParameterError,
)
from engine.remote.chat_request import ChatRequest
from engine.remote.dialects import DIALECTS
from testing.scripted_server import DONE, Piece, ScriptedServer, chunk, event, refusal, reply, usage

HI: list[ChatMessage] = [{"role": "user", "content": "hi"}]
CITY: dict[str, Any] = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOLS = (Tool("weather", "Weather of a city.", CITY, strict=True), Tool("now"))
#: The kinds of servers that take variables of the chat template.
TEMPLATES = ("vllm", "sglang", "deskmate", "llama.cpp")
CALLED: list[ChatMessage] = [
    *HI,
    {
        "role": "assistant",
        "content": "",
        "reasoning": "They greet.",
        "tool_calls": (ToolCall("1", "now", "{}"),),
    },
    {"role": "tool", "content": "noon", "tool_call_id": "1"},
]


@pytest.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    async with ScriptedServer(max_model_len=10_000) as server:
        yield server


@pytest.fixture
async def engine(server: ScriptedServer) -> AsyncIterator[RemoteEngine]:
    async with RemoteEngine(EngineSettings(_env_file=None, remote_url=server.url, remote_retries=0)) as engine:
        yield engine


def body(dialect: str, messages: list[ChatMessage] = HI, **options: Any) -> dict[str, Any]:
    return ChatRequest(messages=messages, options=ChatOptions(**options)).body(DIALECTS[dialect], "m")


async def read(deltas: AsyncIterator[Delta]) -> list[Delta]:
    return [delta async for delta in deltas]


def calls_of(deltas: list[Delta]) -> dict[int, tuple[str | None, str | None, str]]:
    """Id, name and arguments by index. Fails where id and name do not come just once, and first."""
    calls: dict[int, tuple[str | None, str | None, str]] = {}
    for part in (part for delta in deltas for part in delta.tool_calls):
        assert (part.index in calls) is (part.name is None) is (part.id is None)
        id, name, arguments = calls.get(part.index, (part.id, part.name, ""))
        calls[part.index] = (id, name, arguments + part.arguments)
    return calls


def part(
    index: int | None = None, id: str | None = None, name: str | None = None, arguments: Any = None, **delta: Any
) -> bytes:
    call: dict[str, Any] = {"function": {"name": name, "arguments": arguments}}
    call |= {} if index is None else {"index": index}
    call |= {} if id is None else {"id": id, "type": "function"}
    return event({"choices": [{"index": 0, "delta": {"tool_calls": [call], **delta}, "finish_reason": None}]})


@pytest.mark.parametrize("dialect", DIALECTS)
def test_tools_are_sent_as_openai_spells_them(dialect: str) -> None:
    sent = body(dialect, tools=TOOLS, tool_choice=ToolChoiceMode.REQUIRED)
    assert sent["tools"] == [
        {
            "type": "function",
            "function": {
                "name": "weather",
                "description": "Weather of a city.",
                "parameters": CITY,
                "strict": True,
            },
        },
        {"type": "function", "function": {"name": "now"}},
    ]
    assert sent["tool_choice"] == "required"
    auto = body(dialect, tools=TOOLS)
    assert "tools" in auto
    assert not auto.keys() & {"tool_choice", "parallel_tool_calls"}
    assert not body(dialect, tools=TOOLS, tool_choice=ToolChoiceMode.NONE).keys() & {"tools", "tool_choice"}
    assert not body(dialect).keys() & {"tools", "tool_choice", "chat_template_kwargs", "reasoning_effort"}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_named_tool_is_required_in_the_servers_way(dialect: str) -> None:
    sent = body(dialect, tools=TOOLS, tool_choice=NamedTool("now"))
    if dialect == "llama.cpp":
        assert [tool["function"]["name"] for tool in sent["tools"]] == ["now"]
        assert sent["tool_choice"] == "required"
    else:
        assert len(sent["tools"]) == 2
        assert sent["tool_choice"] == {"type": "function", "function": {"name": "now"}}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_calls_and_results_of_the_conversation_are_sent(dialect: str) -> None:
    _, said, result = body(dialect, CALLED)["messages"]
    thoughts = {name: said.pop(name) for name in ("reasoning", "reasoning_content") if name in said}
    assert said == {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "1", "type": "function", "function": {"name": "now", "arguments": "{}"}}],
    }
    assert result == {"role": "tool", "content": "noon", "tool_call_id": "1"}
    assert set(thoughts.values()) <= {"They greet."}
    assert set(thoughts) == {
        "vllm": {"reasoning", "reasoning_content"},
        "deskmate": {"reasoning"},
        "sglang": {"reasoning_content"},
        "llama.cpp": {"reasoning_content"},
    }.get(dialect, set())


def sent_to(names: Iterable[str], **fields: Any) -> dict[str, dict[str, Any]]:
    return dict.fromkeys(names, fields)


#: What each kind of server is sent for an option. A kind that is missing refuses it by the option's name.
SPELLED: list[tuple[dict[str, Any], dict[str, dict[str, Any]]]] = [
    (
        {"thinking": False},
        sent_to(TEMPLATES, chat_template_kwargs={"enable_thinking": False, "thinking": False}),
    ),
    (
        {"reasoning_effort": "low"},
        sent_to(("vllm", "sglang", "deskmate", "openai"), reasoning_effort="low")
        | sent_to(("llama.cpp",), chat_template_kwargs={"reasoning_effort": "low"}),
    ),
    ({"template_kwargs": {"shade": 1}}, sent_to(TEMPLATES, chat_template_kwargs={"shade": 1})),
    (
        {"max_thinking_tokens": 9},
        sent_to(("vllm", "deskmate"), thinking_token_budget=9)
        | sent_to(("llama.cpp",), reasoning_budget_tokens=9, thinking_budget_tokens=9),
    ),
    (
        {"parse_reply": False},
        sent_to(("sglang", "deskmate"), separate_reasoning=False)
        | sent_to(("llama.cpp",), reasoning_format="none")
        | sent_to(("llama-cpp-python", "tgi")),
    ),
    ({"tools": TOOLS, "parallel_tool_calls": False}, sent_to((*TEMPLATES, "openai"), parallel_tool_calls=False)),
    ({"stop_in_reasoning": True}, sent_to(DIALECTS) | sent_to(("deskmate",), stop_in_reasoning=True)),
]


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(("options", "spelled"), SPELLED, ids=lambda value: next(reversed(value)))
def test_options_are_sent_as_the_server_spells_them_or_refused_by_name(
    dialect: str, options: dict[str, Any], spelled: dict[str, dict[str, Any]]
) -> None:
    expected = spelled.get(dialect)
    name = next(reversed(options))
    if expected is None:
        with pytest.raises(UnsupportedParameterError, match=rf"^{name} .*{DIALECTS[dialect].title}"):
            body(dialect, **options)
        return
    sent = body(dialect, **options)
    tools = {name: sent[name] for name in ("tools",) if name in sent}
    assert sent == body(dialect) | tools | expected


async def test_calls_are_read_as_vllm_streams_them(engine: RemoteEngine, server: ScriptedServer) -> None:
    server.say(
        reply(
            chunk(),
            chunk("Hm."),
            part(0, "call-1", "weather", ""),
            part(0, arguments='{"ci'),
            part(0, arguments='ty": "Oslo"}'),
            part(1, "call-2", "now", "{}"),
            chunk(None, "tool_calls", stop_reason=None),
            usage(7, 12),
            DONE,
        )
    )
    deltas = await read(engine.chat(HI, options=ChatOptions(tools=TOOLS)))
    assert calls_of(deltas) == {0: ("call-1", "weather", '{"city": "Oslo"}'), 1: ("call-2", "now", "{}")}
    assert "".join(delta.text for delta in deltas) == "Hm."
    assert (deltas[-1].finish_reason, deltas[-1].stop_reason) == (FinishReason.STOP, None)
    assert deltas[-1].timings is not None
    assert deltas[-1].timings.completion_tokens == 12
    assert server.generation_requests[0].body["tools"][1]["function"]["name"] == "now"


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        # llama-cpp-python repeats id and name in each part.
        ([part(0, "a", "f", "{"), part(0, "a", "f", "}")], [("a", "f", "{}")]),
        # A new id in each part, but the name only once.
        ([part(0, "a", "f", "{"), part(0, "b", None, "}")], [("a", "f", "{}")]),
        # The same index for each of several calls, and indexes that do not begin with 0.
        ([part(0, "a", "f", "{}"), part(0, "b", "g", "{}")], [("a", "f", "{}"), ("b", "g", "{}")]),
        ([part(3, "a", "f", "{}"), part(1, "b", "g", "{}")], [("a", "f", "{}"), ("b", "g", "{}")]),
        # No index at all.
        ([part(None, "a", "f", "{"), part(None, None, None, "}"), part(None, "b", "g", "{}")],
         [("a", "f", "{}"), ("b", "g", "{}")]),
        # The name behind the first arguments.
        ([part(0, "a", None, "{"), part(0, None, "f", "}")], [("a", "f", "{}")]),
        # Arguments as an object, and one call that is no list.
        ([part(0, "a", "f", {"é": 1})], [("a", "f", '{"é": 1}')]),
        ([event({"choices": [{"delta": {"tool_calls": {"id": "a", "function": {"name": "f", "arguments": "{}"}}}}]})],
         [("a", "f", "{}")]),
        # A function that is never named is none.
        ([part(0, "a", None, "{}")], []),
    ],
)  # fmt: skip
async def test_calls_of_any_server_are_put_in_order(
    engine: RemoteEngine, server: ScriptedServer, pieces: list[Piece], expected: list[tuple[str, str, str]]
) -> None:
    server.say(reply(chunk(), *pieces, chunk(None, "tool_calls"), DONE))
    calls = calls_of(await read(engine.chat(HI, options=ChatOptions(tools=TOOLS))))
    assert calls == dict(enumerate(expected))


async def test_a_call_without_id_gets_one(engine: RemoteEngine, server: ScriptedServer) -> None:
    server.say(reply(part(0, None, "f", "{}"), part(1, None, "f", "{}"), chunk(None, "tool_calls"), DONE))
    calls = calls_of(await read(engine.chat(HI, options=ChatOptions(tools=TOOLS))))
    ids = [id for id, _, _ in calls.values()]
    assert len(set(ids)) == 2
    assert all(id is not None and id.startswith("call_") for id in ids)


@pytest.mark.parametrize("names", [("reasoning",), ("reasoning_content",), ("reasoning", "reasoning_content")])
async def test_thoughts_are_read_under_either_name(
    engine: RemoteEngine, server: ScriptedServer, names: tuple[str, ...]
) -> None:
    def thought(text: str) -> bytes:
        return event({"choices": [{"index": 0, "delta": dict.fromkeys(names, text), "finish_reason": None}]})

    server.say(reply(chunk(), thought("They "), thought("greet."), chunk("Hello"), chunk(None, "stop"), DONE))
    deltas = await read(engine.chat(HI))
    assert "".join(delta.reasoning for delta in deltas) == "They greet."
    assert "".join(delta.text for delta in deltas) == "Hello"
    assert deltas[-1].timings is not None
    assert deltas[-1].timings.completion_tokens == 3


@pytest.mark.parametrize("calls", [5, [5], [{"index": "first"}], [{"function": 5}]])
async def test_calls_that_are_none_break_the_reply_off(
    engine: RemoteEngine, server: ScriptedServer, calls: Any
) -> None:
    server.say(reply(chunk("a"), event({"choices": [{"index": 0, "delta": {"tool_calls": calls}}]}), DONE))
    with pytest.raises(ReplyInterruptedError, match="not a valid chunk"):
        await read(engine.chat(HI))


async def test_tools_count(engine: RemoteEngine, server: ScriptedServer) -> None:
    server.on["/tokenize"] = refusal(200, {"count": 42, "tokens": list(range(42))})
    options = ChatOptions(tools=TOOLS, thinking=False)
    assert (await engine.prepare(CALLED, options=options)).num_prompt_tokens == 42
    assert len(await engine.tokenize(CALLED, options=options)) == 42
    for request in server.other_requests[-2:]:
        assert [tool["function"]["name"] for tool in request.body["tools"]] == ["weather", "now"]
        assert request.body["chat_template_kwargs"]["enable_thinking"] is False
        assert request.body["messages"][1]["tool_calls"][0]["id"] == "1"


async def test_tools_count_in_an_estimate(engine: RemoteEngine) -> None:
    alone = (await engine.prepare(HI)).num_prompt_tokens
    large = Tool("f", "x" * 4000, CITY)
    assert (await engine.prepare(HI, options=ChatOptions(tools=(large,)))).num_prompt_tokens > alone + 900
