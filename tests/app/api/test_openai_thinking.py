"""Thinking in ``/v1/chat/completions``: how a request asks for it, and where a client reads it."""

from __future__ import annotations

from typing import Any

import pytest

from engine import ChatOptions
from testing.fake_engine import Thought, call_pieces
from testing.json_events import parse_json_events
from tests.app.live_server import RunningApp

pytestmark = pytest.mark.asyncio(loop_scope="module")

HELLO: list[Any] = [{"role": "user", "content": "What is 6 times 7?"}]
THINKS = (Thought("6 times 7"), Thought(" is 42."), "It is ", "42.")


async def post(live: RunningApp, **fields: Any) -> Any:
    return await live.http.post("/v1/chat/completions", json={"model": "fake", "messages": HELLO, **fields})


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, ChatOptions()),
        ({"enable_thinking": False}, ChatOptions(thinking=False)),
        (
            {"chat_template_kwargs": {"enable_thinking": True, "shade": "dark"}},
            ChatOptions(thinking=True, template_kwargs={"enable_thinking": True, "shade": "dark"}),
        ),
        (
            {"chat_template_kwargs": {"thinking": False}},
            ChatOptions(thinking=False, template_kwargs={"thinking": False}),
        ),
        ({"reasoning_effort": "high"}, ChatOptions(reasoning_effort="high")),
        ({"reasoning_effort": "none"}, ChatOptions(thinking=False)),
        ({"thinking_token_budget": 0}, ChatOptions(max_thinking_tokens=0)),
        ({"thinking_token_budget": -1}, ChatOptions()),
        ({"stop_in_reasoning": True}, ChatOptions(stop_in_reasoning=True)),
        ({"separate_reasoning": False}, ChatOptions(parse_reply=False)),
        ({"reasoning_format": "none"}, ChatOptions(parse_reply=False)),
        ({"reasoning_format": "deepseek", "separate_reasoning": True}, ChatOptions()),
    ],
)
async def test_requests(live: RunningApp, fields: dict[str, Any], expected: ChatOptions) -> None:
    answer = await post(live, **fields)
    assert answer.status_code == 200, answer.text
    assert live.engine.options == [expected]


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"reasoning_effort": "enormous"}, "reasoning_effort", "must be"),
        ({"enable_thinking": "yes"}, "enable_thinking", "true or false"),
        ({"thinking_token_budget": -2}, "thinking_token_budget", "at least 0"),
        ({"enable_thinking": True, "reasoning_effort": "none"}, "enable_thinking", "contradict"),
        ({"enable_thinking": True, "chat_template_kwargs": {"thinking": False}}, "enable_thinking", "contradict"),
        ({"chat_template_kwargs": []}, "chat_template_kwargs", "an object"),
        ({"chat_template_kwargs": {"a b": 1}}, "chat_template_kwargs", "name of a variable"),
        ({"chat_template_kwargs": {"enable_thinking": 1}}, "chat_template_kwargs.enable_thinking", "true or false"),
        ({"chat_template_kwargs": {"x": "y" * 70_000}}, "chat_template_kwargs", "maximum is 65536"),
        ({"thinking": {"type": "enabled"}}, "thinking", "enable_thinking"),
        ({"thinking_budget": 100}, "thinking_budget", "thinking_token_budget"),
        ({"reasoning_budget_tokens": 100}, "reasoning_budget_tokens", "thinking_token_budget"),
        *(
            ({"chat_template_kwargs": {name: False}}, f"chat_template_kwargs.{name}", "set by the server")
            for name in ("chat_template", "tokenize", "tools", "messages", "sanitize_control_tokens", "bos_token")
        ),
    ],
)
async def test_what_cannot_be_asked_is_refused_at_its_place(
    live: RunningApp, fields: dict[str, Any], param: str, says: str
) -> None:
    answer = await post(live, **fields)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param
    assert says in answer.json()["error"]["message"]
    assert live.engine.calls == []


async def test_completions_have_no_thinking_of_their_own(live: RunningApp) -> None:
    fields: list[dict[str, Any]] = [{"enable_thinking": True}, {"tools": [{}]}, {"thinking_token_budget": 5}]
    for field in fields:
        answer = await live.http.post("/v1/completions", json={"prompt": "a", **field})
        assert answer.status_code == 400
        assert "/v1/chat/completions" in answer.json()["error"]["message"]


async def test_a_thought_is_a_field_of_the_message_under_both_names(live: RunningApp) -> None:
    live.engine.say(*THINKS)
    answer = (await post(live)).json()
    message = answer["choices"][0]["message"]
    assert message["content"] == "It is 42."
    assert message["reasoning"] == message["reasoning_content"] == "6 times 7 is 42."
    assert answer["usage"]["completion_tokens_details"] == {"reasoning_tokens": 2}
    assert (await post(live, messages=[*HELLO, message, *HELLO])).status_code == 200
    assert live.engine.calls[1][0][1] == {
        "role": "assistant",
        "content": "It is 42.",
        "reasoning": "6 times 7 is 42.",
    }


async def test_a_stream_brings_thoughts_as_they_come(live: RunningApp) -> None:
    live.engine.say("", *THINKS, *call_pieces("f", "{}"))
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = parse_json_events((await post(live, stream=True, stream_options=options)).content)
    deltas = [event.data["choices"][0]["delta"] for event in events if event.data["choices"]]
    assert [delta.get("reasoning") for delta in deltas[1:3]] == ["6 times 7", " is 42."]
    assert [delta.get("reasoning_content") for delta in deltas[1:3]] == ["6 times 7", " is 42."]
    assert "".join(delta.get("content") or "" for delta in deltas) == "It is 42."
    assert events[-2].data["choices"][0]["finish_reason"] == "tool_calls"
    counts = [event.data["usage"]["completion_tokens_details"]["reasoning_tokens"] for event in events]
    assert counts == sorted(counts)
    assert counts[-1] == 3  # with the token that opens the block


async def test_thoughts_can_be_left_out_of_the_response(live: RunningApp) -> None:
    for stream in (False, True):
        live.engine.say(*THINKS)
        answer = await post(live, stream=stream, include_reasoning=False)
        assert "6 times 7" not in answer.text
        assert "42." in answer.text
        events = parse_json_events(answer.content) if stream else ()
        assert not stream or all(event.data["choices"][0]["delta"] for event in events[:-1]), "an empty chunk was sent"


@pytest.mark.parametrize("answers", [True, False])
async def test_thoughts_can_come_in_one_chunk(live: RunningApp, answers: bool) -> None:
    live.engine.say(*(THINKS if answers else THINKS[:2]))
    events = parse_json_events((await post(live, stream=True, stream_reasoning=False)).content)
    thoughts = [event.data["choices"][0]["delta"].get("reasoning") for event in events]
    assert [thought for thought in thoughts if thought] == ["6 times 7 is 42."]
