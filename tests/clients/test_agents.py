"""Agents of others' libraries against the server, unchanged: they call tools, read thoughts, and send results back.

The engine is scripted, so that every reply is the one that the format needs; everything else is real.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from engine import NamedTool, ToolChoiceMode
from testing.fake_engine import Thought, call_pieces
from tests.app.live_server import RunningApp, live_server, reset_engine
from tests.clients.installed import run_node, run_python

pytestmark = [pytest.mark.full, pytest.mark.timeout(400), pytest.mark.asyncio(loop_scope="module")]

OSLO = call_pieces("weather", '{"ci', 'ty": "Oslo"}')


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningApp]:
    async with live_server(tmp_path_factory.mktemp("data"), gradio=False) as running:
        yield running


@pytest.fixture
def live(server: RunningApp) -> RunningApp:
    reset_engine(server.engine)
    return server


def roles(live: RunningApp, call: int) -> list[str]:
    return [message["role"] for message in live.engine.calls[call][0]]


def check_the_result_was_sent(live: RunningApp, call: int, result: str = "Rain in Oslo") -> None:
    said, told = live.engine.calls[call][0][-2:]
    assert [(one.name, one.arguments.replace(" ", "")) for one in said["tool_calls"]] == [
        ("weather", '{"city":"Oslo"}')
    ]
    assert told == {"role": "tool", "content": result, "tool_call_id": said["tool_calls"][0].id}


async def test_langchain(live: RunningApp) -> None:
    live.engine.say(*OSLO)
    live.engine.say("It rains.")
    live.engine.say(*OSLO)
    answer = await run_python("langchain_agent.py", live.url)
    assert answer["whole"][1:] == [["ai", ""], ["tool", "Rain in Oslo"], ["ai", "It rains."]]
    assert answer["streamed"] == [["weather", {"city": "Oslo"}, "call_weather_0"]]
    assert (answer["usage"], answer["finish_reason"]) == (3, "tool_calls")
    check_the_result_was_sent(live, 1)
    assert live.engine.options[2].tool_choice == NamedTool("weather")
    assert live.engine.options[2].tools[0].strict


async def test_pydantic_ai(live: RunningApp) -> None:
    for city, degrees in (("Oslo", 12), ("Rome", 30)):
        live.engine.say(Thought("I need the weather."), *call_pieces("weather", f'{{"city": "{city}"}}'))
        live.engine.say(*call_pieces("final_result", f'{{"city": "{city}", ', f'"degrees": {degrees}}}'))
    answer = await run_python("pydantic_ai_agent.py", live.url)
    assert answer["whole"] == {"city": "Oslo", "degrees": 12}
    assert answer["streamed"] == {"city": "Rome", "degrees": 30}
    assert answer["thoughts"] == ["I need the weather."]
    check_the_result_was_sent(live, 1, "12 degrees in Oslo")
    assert {tool.name for tool in live.engine.options[0].tools} == {"weather", "final_result"}
    assert live.engine.options[0].tool_choice is ToolChoiceMode.REQUIRED


async def test_instructor(live: RunningApp) -> None:
    for _ in range(2):
        live.engine.say(*call_pieces("Person", '{"name": "Ada"', ', "age": 36}'))
    answer = await run_python("instructor_extraction.py", live.url)
    assert answer["whole"] == {"name": "Ada", "age": 36}
    assert answer["partial"][-1] == {"name": "Ada", "age": 36}
    assert {"name": "Ada", "age": None} in answer["partial"]
    assert live.engine.options[0].tool_choice == NamedTool("Person")


async def test_openai_for_node(live: RunningApp) -> None:
    live.engine.say(*OSLO)
    live.engine.say("It rains.")
    live.engine.say(Thought("Oslo."), *OSLO)
    answer = await run_node("openai_tools.mjs", live.url)
    assert answer["answer"] == "It rains."
    assert answer["call"] == {
        "name": "weather",
        "arguments": '{"city": "Oslo"}',
        "parts": ["", '{"ci', 'ty": "Oslo"}'],
        "finish_reason": "tool_calls",
    }
    assert (answer["text"], answer["reasoning"]) == ("Hello, world.", 1)
    check_the_result_was_sent(live, 1)
    assert live.engine.options[2].tool_choice is ToolChoiceMode.REQUIRED


async def test_the_ai_sdk(live: RunningApp) -> None:
    for _ in range(2):
        live.engine.say(Thought("Where is "), Thought("Oslo?"), *OSLO)
        live.engine.say("It ", "rains.")
    answer: Any = await run_node("ai_sdk.mjs", live.url)
    for result in (answer["whole"], answer["streamed"]):
        assert result == {
            "text": "It rains.",
            "thought": "Where is Oslo?",
            "calls": [["weather", {"city": "Oslo"}]],
            "results": ["Rain in Oslo"],
            "finishReasons": ["tool-calls", "stop"],
            "usage": 7,
        }
    assert {"reasoning-delta", "tool-input-delta", "tool-call", "tool-result", "text-delta"} <= set(answer["kinds"])
    check_the_result_was_sent(live, 1)
    check_the_result_was_sent(live, 3)
    assert live.engine.calls[1][0][-2]["reasoning"] == "Where is Oslo?"


async def test_agents_of_the_responses_api(live: RunningApp) -> None:
    for _ in range(2):
        live.engine.say(*OSLO)
        live.engine.say("It rains.")
    live.engine.say("It ", "rains.")
    for city in ("Oslo", "Rome"):
        live.engine.say(Thought("I need the weather."), *OSLO)
        live.engine.say(*call_pieces("final_result", f'{{"city": "{city}", ', '"degrees": 12}'))
    answer: Any = await run_python("responses_agents.py", live.url)
    for messages in answer["langchain"]["whole"]:
        assert messages[1:] == [["ai", ""], ["tool", "Rain in Oslo"], ["ai", "It rains."]]
    assert answer["langchain"]["streamed"] == "It rains."
    assert answer["pydantic_ai"] == {
        "whole": {"city": "Oslo", "degrees": 12},
        "streamed": {"city": "Rome", "degrees": 12},
        "thoughts": [["I need the weather."]],
    }
    assert live.engine.calls[6][0][1]["reasoning"] == "I need the weather."  # it came back
    for call in (1, 3, 6, 8):
        check_the_result_was_sent(live, call)
        assert roles(live, call) == ["user", "assistant", "tool"]


async def test_the_responses_api_for_node(live: RunningApp) -> None:
    live.engine.say(Thought("Oslo."), *OSLO)
    live.engine.say("It rains.")
    live.engine.say("Wait. ", *OSLO)
    live.engine.say('{"city": "Oslo"}')
    answer = await run_node("openai_responses.mjs", live.url)
    assert answer == {
        "answer": "It rains.",
        "streamed": "Wait. ",
        "parts": ["Wait. ", '{"ci', 'ty": "Oslo"}'],
        "parsed": {"city": "Oslo"},
        "again": "It rains.",
        "items": ["function_call_output"],
        "gone": 404,
    }
    check_the_result_was_sent(live, 1)
    assert live.engine.options[0].tools[0].strict
