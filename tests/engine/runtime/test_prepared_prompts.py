"""A conversation that was checked is not rendered again for its reply; another one always is."""

from __future__ import annotations

from typing import Any

import pytest

from engine import ChatMessage, SamplingParams
from engine.runtime.prepared_prompts import MAX_ENTRIES, PreparedPrompt, PreparedPromptCache

PARAMS = SamplingParams(max_tokens=5)
CHAT: list[ChatMessage] = [{"role": "user", "content": "Hello"}]


def rendered(*token_ids: int) -> PreparedPrompt:
    return PreparedPrompt(list(token_ids), PARAMS, [])


def test_it_is_taken_once() -> None:
    prompts = PreparedPromptCache()
    prompts.put(CHAT, PARAMS, rendered(1))
    assert prompts.pop([{"role": "user", "content": "Hello"}], SamplingParams(max_tokens=5)) == rendered(1)
    assert prompts.pop(CHAT, PARAMS) is None


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
    prompts = PreparedPromptCache()
    prompts.put(CHAT, PARAMS, rendered(1))
    assert prompts.pop(messages, params) is None
    assert prompts.pop(CHAT, PARAMS) == rendered(1)


def test_a_conversation_that_goes_on_is_another_one() -> None:
    prompts, messages = PreparedPromptCache(), list(CHAT)
    prompts.put(messages, PARAMS, rendered(1))
    messages.append({"role": "assistant", "content": "Hello"})
    assert prompts.pop(messages, PARAMS) is None


def test_those_that_nobody_takes_are_forgotten() -> None:
    prompts = PreparedPromptCache()
    for number in range(MAX_ENTRIES + 1):
        prompts.put([{"role": "user", "content": str(number)}], PARAMS, rendered(number))
    assert prompts.pop([{"role": "user", "content": "0"}], PARAMS) is None
    assert prompts.pop([{"role": "user", "content": "1"}], PARAMS) == rendered(1)
