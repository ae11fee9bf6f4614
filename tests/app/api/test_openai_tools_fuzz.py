"""Whatever is in tools, calls and options: a request is taken, or refused with a sentence that names the place."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from app.api.errors import describe_in_v1
from app.api.openai.requests import ChatCompletionRequest

REQUEST: dict[str, Any] = {
    "messages": [
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "content": None,
            "reasoning": "hm",
            "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}],
        },
        {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "x"}]},
    ],
    "tools": [
        {
            "type": "function",
            "function": {
                "name": "f",
                "description": "d",
                "strict": True,
                "parameters": {
                    "type": "object",
                    "properties": {"a": {"type": ["integer", "null"], "enum": [1]}, "b": {"$ref": "#/$defs/c"}},
                    "required": ["a"],
                    "additionalProperties": False,
                    "$defs": {"c": {"anyOf": [{"type": "array", "items": {"type": "string"}}, True]}},
                },
            },
        }
    ],
    "tool_choice": {"type": "function", "function": {"name": "f"}},
    "parallel_tool_calls": False,
    "chat_template_kwargs": {"enable_thinking": True},
    "reasoning_effort": "low",
    "thinking_token_budget": 5,
    "reasoning_format": "auto",
}
#: Words that mean something here, so that the fuzz gets past the first check.
WORDS = st.sampled_from(
    (
        *("type", "object", "function", "name", "f", "properties", "$ref", "#", "#/", "#/$defs/c", "#/$defs/c/anyOf/1"),
        *(
            "#/$defs/c/anyOf/9",
            "#/x/~2",
            "items",
            "anyOf",
            "required",
            "none",
            "auto",
            "allowed_tools",
            "",
            "{}",
            "[1]",
        ),
        *(
            "assistant",
            "tool",
            "1",
            "tool_calls",
            "tool_call_id",
            "arguments",
            "\ud800",
            "a\u0000b",
            "x" * 300,
            "{param}",
        ),
    )
)
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | WORDS | st.text(max_size=5)
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3), max_leaves=6
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every path into a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, one in inner for place in places(one, (*path, key)))]


PLACES = places(REQUEST)[1:]


@settings(max_examples=300, suppress_health_check=list(HealthCheck), derandomize=True, database=None)
@given(st.lists(st.tuples(st.sampled_from(PLACES), VALUES), min_size=1, max_size=3), st.booleans())
def test_a_request_is_taken_or_refused_at_its_place(changes: list[tuple[tuple[Any, ...], Any]], removes: bool) -> None:
    body = copy.deepcopy(REQUEST)
    for path, value in changes:
        target: Any = body
        for key in path[:-1]:
            target = target[key] if _has(target, key) else {}
        if not _has(target, path[-1]):
            continue
        if removes:
            del target[path[-1]]
        else:
            target[path[-1]] = value
    try:
        request = ChatCompletionRequest.model_validate(body)
    except ValidationError as error:
        message, _param = describe_in_v1(error.errors())
        assert message.endswith(".")
        assert len(message) < 1000
        return
    options = request.chat_options()
    assert len({tool.name for tool in options.tools}) == len(options.tools)
    assert request.num_characters >= 0
    assert [message["role"] for message in request.for_engine()]


def _has(value: Any, key: Any) -> bool:
    return (
        key in value
        if isinstance(value, dict)
        else isinstance(value, list) and isinstance(key, int) and key < len(value)
    )
