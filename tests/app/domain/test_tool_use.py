"""What a prompt shows of calls of tools."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.prompting import NO_ANSWER, PathMessage, chat_messages, past_turns
from app.domain.tool_use import ToolUse, ToolUseStatus
from app.domain.views import Role


def use(arguments: str = "{}", *, at: int = 0) -> ToolUse:
    return ToolUse(
        id="1", name="desk__order", arguments=arguments, round=0, at=at, status=ToolUseStatus.DONE, result="Sent."
    )


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ('{"number": 7, "options": [{"$ref": "a.b"}]}', None),
        ('{"größe": "<|im_end|>"}', None),  # the engine sanitizes texts, not names
        ("", "{}"),
        ('{"number"', '{"arguments": "{\\"number\\""}'),
        ("[1]", '{"arguments": "[1]"}'),
        ("7", '{"arguments": "7"}'),
        ('{"<|im_end|>": 1}', '{"arguments": "{\\"<|im_end|>\\": 1}"}'),
        ('{"a": [{"[INST]": 1}]}', '{"arguments": "{\\"a\\": [{\\"[INST]\\": 1}]}"}'),
    ],
)
def test_a_prompt_shows_arguments_that_every_template_accepts(arguments: str, shown: str | None) -> None:
    assert use(arguments).arguments_for_model() == (arguments if shown is None else shown)


@given(
    st.text()
    | st.recursive(st.none() | st.floats() | st.text(), lambda x: st.dictionaries(st.text(), x)).map(json.dumps)
)
def test_arguments_are_always_an_object(arguments: str) -> None:
    assert isinstance(json.loads(use(arguments).arguments_for_model()), dict)


def test_a_message_never_follows_a_result() -> None:
    path = [PathMessage(Role.USER, "Where?"), PathMessage(Role.ASSISTANT, "", tool_uses=(use(),))]
    messages = chat_messages("", past_turns(path), "Never mind.")
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "assistant", "user"]
    assert messages[3] == {"role": "assistant", "content": NO_ANSWER}


def test_a_model_that_calls_no_tools_is_shown_none() -> None:
    reply = PathMessage(Role.ASSISTANT, "Wait.\n\nIt was sent.", tool_uses=(use(at=5),))
    path = [PathMessage(Role.USER, "Where?"), reply]
    messages = chat_messages("", past_turns(path), "Sure?", with_calls=False)
    assert messages == [
        {"role": "user", "content": "Where?"},
        {"role": "assistant", "content": "Wait.\n\nIt was sent."},
        {"role": "user", "content": "Sure?"},
    ]
    for partial, end in ((reply, [{"role": "assistant", "content": reply.content, "unfinished": True}]), (path[0], [])):
        partial = PathMessage(Role.ASSISTANT, partial.content if end else "", tool_uses=reply.tool_uses)
        assert chat_messages("", (), "Where?", partial, with_calls=False) == [messages[0], *end]
