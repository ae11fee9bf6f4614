"""Replies split into thinking, tool calls and answer are the same however their text arrives."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

import pytest

from engine.text.reply_formats.detection import named_reply_format
from engine.text.reply_formats.parser import ReplyParser

TOOLS = {
    "get_weather": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
    "add": {"type": "object", "properties": {"a": {"type": "integer"}}},
}


class Parsed(NamedTuple):
    text: str
    reasoning: str
    calls: list[tuple[str, str]]


def parse(name: str, reply: str, cuts: Iterable[int] = (), *, is_thinking: bool = False) -> Parsed:
    parser = ReplyParser(named_reply_format(name), is_thinking=is_thinking, tools=TOOLS)
    bounds = [0, *cuts, len(reply)]
    parts = [parser.push(reply[a:b]) for a, b in pairwise(bounds)]
    parts.append(parser.finish())
    calls: dict[int, tuple[str, str]] = {}
    for delta in (delta for part in parts for delta in part.tool_calls):
        assert (delta.id is None) == (delta.name is None) == (delta.index in calls)
        name, arguments = calls.get(delta.index, (delta.name or "", ""))
        calls[delta.index] = (name, arguments + delta.arguments)
    text, reasoning = ("".join(getattr(part, field) for part in parts) for field in ("text", "reasoning"))
    return Parsed(text, reasoning, [calls[index] for index in range(len(calls))])


WEATHER = {"city": 'Köln </tool_call> "x"', "days": 3}
HERMES = '<tool_call>\n{"name": "get_weather", "arguments": ' + json.dumps(WEATHER) + "}\n</tool_call>"

REPLIES = {
    "text": ("think+hermes", " A <b>plain</b> answer < 3. \n", Parsed(" A <b>plain</b> answer < 3. \n", "", [])),
    "thinking": ("think", "<think>\nHm. <tool\n</think>\n\nYes <think>.", Parsed("Yes <think>.", "Hm. <tool", [])),
    "only thinking": ("think", "<think>\nHm. ", Parsed("", "Hm.", [])),
    "call": ("hermes", HERMES, Parsed("", "", [("get_weather", json.dumps(WEATHER))])),
    "thinking, text and calls": (
        "think+hermes",
        f"<think>a</think>\nLet me see.\n{HERMES}\n{HERMES}\n",
        Parsed("Let me see.", "a", [("get_weather", json.dumps(WEATHER))] * 2),
    ),
    "arguments first": (
        "hermes",
        '<tool_call>{"arguments": {"a": 1}, "id": [{}], "name": "add"}</tool_call> Done.',
        Parsed(" Done.".lstrip(), "", [("add", '{"a": 1}')]),
    ),
    "no arguments": ("hermes", '<tool_call>{"name": "add"}</tool_call>', Parsed("", "", [("add", "{}")])),
    "arguments as a string": (
        "hermes",
        '<tool_call>{"name": "add", "arguments": "{\\"a\\": 1}"}</tool_call>',
        Parsed("", "", [("add", '{"a": 1}')]),
    ),
    "loose JSON": (
        "hermes",
        '<tool_call>{"name": "add", "arguments": {"a": "x\ny\\\'z\\d", "b": [1, ], }</tool_call>',
        Parsed("", "", [("add", '{"a": "x\\ny\'z\\\\d", "b": [1 ] }')]),
    ),
    "no call": ("hermes", "See <tool_call>this</tool_call>.", Parsed("See <tool_call>this</tool_call>.", "", [])),
    "broken arguments": (
        "hermes",
        '<tool_call>{"name": "add", "arguments": {"a": oops}}</tool_call>Sorry.',
        Parsed("Sorry.", "", [("add", '{"a": oops}}')]),
    ),
    "cut within arguments": (
        "hermes",
        '<tool_call>{"name": "add", "arguments": {"a": "b',
        Parsed("", "", [("add", '{"a": "b')]),
    ),
    "cut within the name": (
        "hermes",
        'Hi <tool_call>{"name": "ad',
        Parsed('Hi <tool_call>{"name": "ad', "", []),
    ),
}

CITY = 'Köln "x"\nDeutz'
CALLS = [("get_weather", {"city": CITY, "days": 3}), ("add", {"a": 1})]
ESCAPED = json.dumps(CITY)
FAMILIES = {
    "hermes": (
        f'<tool_call>\n{{"name": "get_weather", "arguments": {{"city": {ESCAPED}, "days": 3}}}}\n</tool_call>\n'
        '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
    ),
    "qwen3_coder": (
        f"<tool_call>\n<function=get_weather>\n<parameter=city>\n{CITY}\n</parameter>\n<parameter=days>\n3\n"
        "</parameter>\n</function>\n</tool_call>\n"
        "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>"
    ),
    "glm45": (
        f"<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>{CITY}</arg_value>\n<arg_key>days</arg_key>\n"
        "<arg_value>3</arg_value>\n</tool_call>\n<tool_call>add\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n"
        "</tool_call>"
    ),
    "deepseek_v31": (
        f'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{{"city": {ESCAPED}, "days": 3}}'
        '<｜tool▁call▁end｜><｜tool▁call▁begin｜>add<｜tool▁sep｜>{"a": 1}<｜tool▁call▁end｜><｜tool▁calls▁end｜>'
    ),
    "deepseek_v3": (
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
        f'{{"city": {ESCAPED}, "days": 3}}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>add\n'
        '```json\n{"a": 1}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>'
    ),
    "mistral": (
        f'[TOOL_CALLS] [{{"name": "get_weather", "arguments": {{"city": {ESCAPED}, "days": 3}}, "id": "abc"}}, '
        '{"name": "add", "arguments": {"a": 1}}]'
    ),
    "mistral ": f'[TOOL_CALLS]get_weather{{"city": {ESCAPED}, "days": 3}}[TOOL_CALLS]add[CALL_ID]x1[ARGS]{{"a": 1}}',
    "llama3_json": (
        f'{{"name": "get_weather", "parameters": {{"city": {ESCAPED}, "days": 3}}}}; '
        '{"name": "add", "parameters": {"a": 1}}'
    ),
    "pythonic": f"[get_weather(city={CITY!r}, days=3), add(a=1)]",
    "functiongemma": (
        f"<start_function_call>call:get_weather{{city:<escape>{CITY}<escape>,days:3}}<end_function_call>"
        "<start_function_call>call:add{a:1}<end_function_call>"
    ),
    "gemma4": (
        f'<|tool_call>call:get_weather{{city:<|"|>{CITY}<|"|>,days:3}}<tool_call|>'
        "<|tool_call>call:add{a:1}<tool_call|>"
    ),
    "harmony": (
        "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"
        f'{{"city": {ESCAPED}, "days": 3}}<|call|><|start|>assistant to=functions.add<|channel|>commentary json'
        '<|message|>{"a": 1}'
    ),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_each_format_gives_the_same_calls_wherever_it_is_cut(name: str) -> None:
    reply = FAMILIES[name]
    whole = parse(name.strip(), reply)
    assert [(tool, json.loads(arguments)) for tool, arguments in whole.calls] == CALLS
    assert whole.text == whole.reasoning == ""
    for cut in range(len(reply) + 1):
        assert parse(name.strip(), reply, [cut]) == whole, reply[:cut]
    assert parse(name.strip(), reply, range(1, len(reply))) == whole


@pytest.mark.parametrize("name", FAMILIES)
def test_a_reply_that_ends_anywhere_loses_nothing_but_tags(name: str) -> None:
    reply = FAMILIES[name]
    for end in range(len(reply)):
        cut = parse(name.strip(), reply[:end])
        for (tool, _arguments), (expected, _) in zip(cut.calls, CALLS, strict=False):
            assert tool == expected
        if "Köln" in reply[:end]:
            assert "Köln" in cut.text + "".join(arguments for _, arguments in cut.calls)


def test_channels_are_told_apart() -> None:
    reply = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes <b>."
    for cut in range(len(reply) + 1):
        assert parse("harmony", reply, [cut]) == Parsed("Yes <b>.", "Hm.", [])
    assert parse("harmony", "Just text.") == Parsed("Just text.", "", [])


@pytest.mark.parametrize("reply", ['{"name": "Bob", "parameters": {}}', '{"a": 1} is JSON', "{"])
def test_an_answer_that_is_json_is_no_call(reply: str) -> None:
    for cut in range(len(reply) + 1):
        assert parse("llama3_json", reply, [cut]) == Parsed(reply, "", [])


@pytest.mark.parametrize("name", REPLIES)
def test_a_reply_is_the_same_wherever_it_is_cut(name: str) -> None:
    format_name, reply, expected = REPLIES[name]
    assert parse(format_name, reply) == expected
    for cut in range(len(reply) + 1):
        assert parse(format_name, reply, [cut]) == expected, reply[:cut]
    noise = random.Random(name)
    for _ in range(20):
        cuts = sorted(noise.choices(range(len(reply) + 1), k=noise.randrange(1, 12)))
        assert parse(format_name, reply, cuts) == expected, cuts
    assert parse(format_name, reply, range(1, len(reply))) == expected


def test_thinking_that_the_prompt_opened_needs_no_opening_tag() -> None:
    assert parse("think", "Hm.\n</think>\n\nYes.", is_thinking=True) == Parsed("Yes.", "Hm.", [])


def test_no_fragment_of_a_tag_is_shown_while_a_reply_is_written() -> None:
    parser = ReplyParser(named_reply_format("think+hermes"), tools=TOOLS)
    shown = [parser.push(character) for character in f"<think>x</think>Yes {HERMES}"]
    assert "".join(part.text for part in shown) == "Yes"
    assert "".join(part.reasoning for part in shown) == "x"


def test_without_tools_a_call_is_text() -> None:
    parser = ReplyParser(named_reply_format("hermes"))
    assert parser.push(HERMES).text + parser.finish().text == HERMES


def test_long_and_deep_arguments_are_read_in_pieces() -> None:
    arguments = '{"a": ' + "[" * 5000 + "]" * 5000 + ', "b": "' + "x" * 200_000 + '"}'
    reply = '<tool_call>{"name": "add", "arguments": ' + arguments + "}</tool_call>"
    assert parse("hermes", reply, range(4, len(reply), 4)).calls == [("add", arguments)]
