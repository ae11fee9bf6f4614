"""Requests to ``/v1`` that cost a server much: schemas, regular expressions, tools and large bodies."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

MAX_BODY_BYTES = 4 * 2**20
_CHAT, _RESPONSES = "/v1/chat/completions", "/v1/responses"
_MESSAGES = [{"role": "user", "content": "Tell me what you can do."}]


class HostileRequest(NamedTuple):
    """One request: its path and its body as JSON."""

    path: str
    body: bytes


def _chat(**fields: Any) -> HostileRequest:
    body = {"messages": _MESSAGES, "max_tokens": 16, **fields}
    return HostileRequest(_CHAT, json.dumps(body).encode())


def _response(**fields: Any) -> HostileRequest:
    body = {"input": "Tell me what you can do.", "max_output_tokens": 16, "store": False, **fields}
    return HostileRequest(_RESPONSES, json.dumps(body).encode())


def _schema(schema: object) -> HostileRequest:
    return _chat(response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": schema}})


def _nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


def _variants(number: int) -> list[HostileRequest]:
    """Returns requests that no cache of compiled grammars answers for those of another number."""
    title = f"variant {number}"
    wide = {f"p{number}_{index}": {"type": "string", "maxLength": 200, "minLength": index % 50} for index in range(900)}
    choices = [f"{number} {index} {'word ' * 20}" for index in range(1800)]
    return [
        _schema({"title": title, **_nested(45)}),
        _schema({"title": title, "$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}),
        _schema(
            {
                "title": title,
                "$ref": "#/$defs/a",
                "$defs": {"a": {"type": "object", "properties": {"b": {"$ref": "#/$defs/a"}}, "required": ["b"]}},
            }
        ),
        _schema({"title": title, "type": "object", "properties": wide, "required": list(wide)}),
        _schema({"title": title, "type": "object", "allOf": [{"required": [f"{index}"]} for index in range(300)]}),
        _schema({"title": title, "type": "string", "enum": choices}),
        _schema({"title": title, "type": "integer", "minimum": 5, "maximum": 4}),
        _chat(structured_outputs={"choice": choices}),
        _response(text={"format": {"type": "json_schema", "name": "a", "schema": {"title": title, **_nested(45)}}}),
    ]


def schemas(count: int) -> list[HostileRequest]:
    """Returns deep, endless, wide and impossible schemas, none of which was compiled before."""
    deep = "[" * 1000 + "]" * 1000
    text = f'{{"messages": {json.dumps(_MESSAGES)}, "structured_outputs": {{"json": {{"enum": {deep}}}}}}}'
    return [*(one for number in range(count) for one in _variants(number)), HostileRequest(_CHAT, text.encode())]


def patterns(count: int) -> list[HostileRequest]:
    """Returns regular expressions with many states, for the form of a reply and for its end."""
    made = []
    for number in range(count):
        exploding = (
            f"{number}(a|b)*a(a|b){{{200 + number % 50}}}",
            f"{number}(x+x+)+y",
            f"{number}(((a{{1,90}}){{1,90}}){{1,90}})",
            f"{number}" + "(.*a)" * 40 + "b",
            f"{number}[\\p{{L}}]{{1,5000}}",
            "|".join(f"{number}{index}.*z" for index in range(700)),
        )
        made += [_chat(structured_outputs={"regex": pattern}) for pattern in exploding]
        made += [_chat(stop_regex=[pattern[:256]]) for pattern in exploding[:5]]
    return made


def tools(count: int) -> list[HostileRequest]:
    """Returns malformed, colliding, large and many tools, and calls with arguments of a megabyte."""
    made = []
    for number in range(count):
        many = [_function(f"f{number}_{index}", index) for index in range(128)]
        arguments = json.dumps({"list": [number, *[1] * 340_000]})[: 2**20]
        called = [
            *_MESSAGES,
            {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": arguments}}]},
            {"role": "tool", "tool_call_id": "a", "content": "done"},
        ]
        made += [
            _chat(tools=[{"type": "function", "function": many}]),
            _chat(tools=[_function("same", 1), _function("same", 2)]),
            _chat(tools=many, tool_choice="required"),
            _chat(tools=many * 4),
            _chat(messages=called),
            _chat(messages=[*called[:1], {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": 5}}]}]),
            _response(
                tools=[{"type": "function", **_function(f"r{number}", number)["function"]}], tool_choice="required"
            ),
        ]
    return made


def _function(name: str, number: int) -> dict[str, Any]:
    properties = {f"p{index}": {"type": "string", "description": f"{number} word " * 10} for index in range(12)}
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": "Does something. " * 5,
            "strict": True,
            "parameters": {"type": "object", "properties": properties, "required": list(properties)},
        },
    }


def bodies(count: int) -> list[HostileRequest]:
    """Returns bodies just below the limit: many messages, parts, wrong entries, unknown fields, and too large ones."""
    head = f'"messages": {json.dumps(_MESSAGES)}'
    made = [
        f'{{"messages": {_filled(json.dumps(_MESSAGES[0]))}}}',
        f'{{"messages": [{{"role": "user", "content": {_filled(json.dumps("a"))}}}]}}',
        f'{{{head}, "stop": {_filled("1")}}}',
        f'{{{head}, "tools": {_filled("{}")}}}',
        f'{{{head}, "unknown": {_filled("[]")}}}',
        f'{{{head}, "user": "{"x" * (MAX_BODY_BYTES - 200)}"}}',
        f'{{{head}, "user": "{"x" * (2 * MAX_BODY_BYTES)}"}}',
    ]
    return [HostileRequest(_CHAT, text.encode()) for text in made] * count


def _filled(entry: str) -> str:
    return f"[{','.join([entry] * ((MAX_BODY_BYTES - 200) // (len(entry) + 1)))}]"


def plain(count: int) -> Sequence[HostileRequest]:
    """Returns ordinary chats of the same length, to compare with."""
    return [
        _chat(messages=[{"role": "user", "content": f"Tell me what you can do, {number}."}]) for number in range(count)
    ]
