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


class Parsed(NamedTuple):
    text: str
    reasoning: str
    calls: list[tuple[str, str]]


def parse(name: str, reply: str, cuts: Iterable[int] = (), *, is_thinking: bool = False) -> Parsed:
    parser = ReplyParser(named_reply_format(name), is_thinking=is_thinking, tools=["get_weather", "add"])
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
    parser = ReplyParser(named_reply_format("think+hermes"), tools=["get_weather"])
    shown = [parser.push(character) for character in f"<think>x</think>Yes {HERMES}"]
    assert "".join(part.text for part in shown) == "Yes"
    assert "".join(part.reasoning for part in shown) == "x"


def test_without_tools_a_call_is_text() -> None:
    parser = ReplyParser(named_reply_format("hermes"))
    assert parser.push(HERMES).text + parser.finish().text == HERMES


def test_long_and_deep_arguments_are_read_in_pieces() -> None:
    arguments = '{"a": ' + "[" * 5000 + "]" * 5000 + ', "b": "' + "x" * 1_000_000 + '"}'
    reply = '<tool_call>{"name": "add", "arguments": ' + arguments + "}</tool_call>"
    assert parse("hermes", reply, range(4, len(reply), 4)).calls == [("add", arguments)]
