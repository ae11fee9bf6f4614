"""Choices of a chat completion out of the engine's deltas: several replies at once, tokens, what counts as thinking."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from app.api.openai.replies import CompletionResponse, Extras
from app.api.openai.requests import ChatCompletionRequest
from engine import Delta, FinishReason, Logprob, Timings, TokenLogprobs, ToolCallDelta
from testing.json_events import parse_json_events

TIMINGS = Timings(5, 0, 4, 0.0, 0.0, 0.0, 0.0)


def score(token: int) -> TokenLogprobs:
    return TokenLogprobs(Logprob(token, -0.5, str(token), str(token).encode()), 1, ())


def delta(index: int = 0, *tokens: int, **fields: Any) -> Delta:
    return Delta("r", index=index, token_ids=tokens, logprobs=tuple(map(score, tokens)), **fields)


def part_of_call(index: int, arguments: str = "", name: str | None = None) -> dict[str, Any]:
    return {"tool_calls": (ToolCallDelta(index, arguments, id=name and f"call_{name}", name=name),)}


def end(index: int, reason: FinishReason = FinishReason.STOP) -> Delta:
    return delta(index, finish_reason=reason, timings=TIMINGS)


#: Two replies at once: one thinks and calls two tools, the other answers.
BOTH = (
    delta(0, 1),  # the tag that opens the block
    delta(1, 2, text="No"),
    delta(0, 3, 4, reasoning="Well"),
    delta(0, 5),  # the tag that closes it
    delta(0, 6, 7, **part_of_call(0, "", "f")),
    delta(1, 8, text=" calls."),
    delta(0, 9, **part_of_call(0, "{}")),
    delta(0, 10, **part_of_call(1, '{"a": ', "g")),
    end(1),
    delta(0, 11, **part_of_call(1, "1}")),
    end(0),
)


async def deltas(parts: Sequence[Delta]) -> AsyncIterator[Delta]:
    for part in parts:
        yield part


def response(**fields: Any) -> CompletionResponse:
    body = ChatCompletionRequest.model_validate({"messages": [{"role": "user", "content": "x"}], "n": 2, **fields})
    return CompletionResponse("chat", "m", "1", "fp", Extras.from_request(body))


async def test_several_replies_keep_their_own_calls_and_thoughts() -> None:
    whole = await response(logprobs=True, return_token_ids=True).full(deltas(BOTH))
    first, second = whole["choices"]
    assert first["message"]["tool_calls"] == [
        {"id": "call_f", "type": "function", "function": {"name": "f", "arguments": "{}"}},
        {"id": "call_g", "type": "function", "function": {"name": "g", "arguments": '{"a": 1}'}},
    ]
    assert (first["message"]["content"], first["message"]["reasoning"]) == (None, "Well")
    assert second["message"] == {"role": "assistant", "content": "No calls.", "refusal": None}
    assert [choice["finish_reason"] for choice in whole["choices"]] == ["tool_calls", "stop"]
    assert first["token_ids"] == [1, 3, 4, 5, 6, 7, 9, 10, 11]
    assert [entry["token"] for entry in first["logprobs"]["content"]] == [str(token) for token in first["token_ids"]]
    assert whole["usage"]["completion_tokens_details"] == {"reasoning_tokens": 3}


async def test_a_stream_of_several_replies_adds_up_to_the_same() -> None:
    whole = await response(logprobs=True, return_token_ids=True).full(deltas(BOTH))
    options = {"include_usage": True}
    asked = response(logprobs=True, return_token_ids=True, stream=True, stream_options=options)
    data = b"".join([chunk async for chunk in asked.stream(deltas(BOTH))])
    events = [event.data for event in parse_json_events(data)]
    for choice in whole["choices"]:
        parts = [each for event in events for each in event["choices"] if each["index"] == choice["index"]]
        assert [token for part in parts for token in part["token_ids"]] == choice["token_ids"]
        scores = [entry for part in parts if part["logprobs"] for entry in part["logprobs"]["content"]]
        assert scores == choice["logprobs"]["content"]
        assert [part["finish_reason"] for part in parts if part["finish_reason"]] == [choice["finish_reason"]]
        calls: dict[int, dict[str, Any]] = {}
        for call in (each for part in parts for each in part["delta"].get("tool_calls", ())):
            known = calls.setdefault(call["index"], {**call, "function": {**call["function"], "arguments": ""}})
            known["function"]["arguments"] += call["function"]["arguments"]
        assert [{k: v for k, v in calls[index].items() if k != "index"} for index in sorted(calls)] == choice[
            "message"
        ].get("tool_calls", [])
    assert events[-1]["usage"] == whole["usage"]


@pytest.mark.parametrize(
    ("parts", "tokens"),
    [
        ((delta(0, 1), delta(0, 2, text="a")), 0),
        ((delta(0, 1, reasoning="a"), delta(0, 2), delta(0, 3, text="b")), 1),
        # A thought whose end is held back: its tokens count as soon as the rest of it comes.
        ((delta(0, 1, reasoning="a"), delta(0, 2), delta(0, 3, reasoning="b"), delta(0, 4, text="c")), 3),
        # Several in one, for a slow reader.
        ((delta(0, 1, 2, 3, 4, reasoning="abcdefghi", text="jkl"), delta(0, 5, text="m")), 3),
        # Interleaved, as some models think between calls.
        ((delta(0, 1, reasoning="a"), delta(0, 2, text="b"), delta(0, 3), delta(0, 4, reasoning="c")), 3),
    ],
)
async def test_tokens_of_thinking(parts: Sequence[Delta], tokens: int) -> None:
    whole = await response().full(deltas([*parts, end(0)]))
    assert whole["usage"]["completion_tokens_details"] == {"reasoning_tokens": tokens}


async def test_hidden_thoughts_still_count_as_tokens() -> None:
    whole = await response(include_reasoning=False).full(deltas(BOTH))
    assert whole["choices"][0]["message"].keys() == {"role", "content", "refusal", "tool_calls"}
    assert whole["usage"]["completion_tokens_details"] == {"reasoning_tokens": 3}
