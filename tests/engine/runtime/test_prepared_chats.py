"""A conversation that was checked is not rendered again for its reply; another one always is."""

from __future__ import annotations

from typing import Any

import pytest

from engine import ChatMessage, SamplingParams
from engine.runtime.prepared_chats import CAPACITY, RenderedChat, RenderedChats

PARAMS = SamplingParams(max_tokens=5)
CHAT: list[ChatMessage] = [{"role": "user", "content": "Hello"}]


def rendered(*token_ids: int) -> RenderedChat:
    return RenderedChat(list(token_ids), PARAMS, [])


def test_it_is_taken_once() -> None:
    chats = RenderedChats()
    chats.keep(CHAT, PARAMS, rendered(1))
    assert chats.take([{"role": "user", "content": "Hello"}], SamplingParams(max_tokens=5)) == rendered(1)
    assert chats.take(CHAT, PARAMS) is None


@pytest.mark.parametrize(
    ("messages", "params"),
    [
        (CHAT, None),
        (CHAT, SamplingParams(max_tokens=6)),
        (CHAT * 2, PARAMS),
        ([{"role": "system", "content": "Hello"}], PARAMS),
        ([{"role": "user", "content": "Hello", "token_ids": (1,)}], PARAMS),
        ([{"role": "user", "content": ["Hello"]}], PARAMS),
        ([], PARAMS),
    ],
)
def test_nothing_else_is_taken_for_it(messages: Any, params: SamplingParams | None) -> None:
    chats = RenderedChats()
    chats.keep(CHAT, PARAMS, rendered(1))
    assert chats.take(messages, params) is None
    assert chats.take(CHAT, PARAMS) == rendered(1)


def test_a_conversation_that_goes_on_is_another_one() -> None:
    chats, messages = RenderedChats(), list(CHAT)
    chats.keep(messages, PARAMS, rendered(1))
    messages.append({"role": "assistant", "content": "Hello"})
    assert chats.take(messages, PARAMS) is None


def test_those_that_nobody_takes_are_forgotten() -> None:
    chats = RenderedChats()
    for number in range(CAPACITY + 1):
        chats.keep([{"role": "user", "content": str(number)}], PARAMS, rendered(number))
    assert chats.take([{"role": "user", "content": "0"}], PARAMS) is None
    assert chats.take([{"role": "user", "content": "1"}], PARAMS) == rendered(1)
