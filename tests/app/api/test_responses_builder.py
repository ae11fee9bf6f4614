"""Log-probabilities of a response: those of the text's tokens, and only those, each with the text that it brought."""

from __future__ import annotations

from typing import Any

from app.api.openai.responses.builder import ResponseBuilder
from engine import Delta, FinishReason, Logprob, TokenLogprobs


def token(text: str) -> TokenLogprobs:
    one = Logprob(1, -0.5, text, text.encode())
    return TokenLogprobs(one, 1, (one, Logprob(2, -1.5, "<end>", b"")))


def delta(text: str = "", reasoning: str = "", *tokens: str, finish: FinishReason | None = None) -> Delta:
    scores = tuple(map(token, tokens))
    return Delta(
        "r", text=text, reasoning=reasoning, token_ids=(1,) * len(tokens), logprobs=scores, finish_reason=finish
    )


def build(*deltas: Delta) -> tuple[list[list[str]], dict[str, Any]]:
    """Returns the tokens of each delta of text, and the response."""
    builder = ResponseBuilder("resp_1", {}, with_logprobs=True)
    events = [event for one in deltas for event in builder.feed(one)]
    written = [event for event in events if event["type"] == "response.output_text.delta"]
    return [[one["token"] for one in event["logprobs"]] for event in written], builder.to_dict()


def test_tokens_wait_for_their_text() -> None:
    parts, response = build(
        delta("", "", "\ud7ff"), delta("ab", "", "a"), delta("c", "", "c"), delta(finish=FinishReason.STOP)
    )
    assert parts == [["\ud7ff", "a"], ["c"]]
    (part,) = response["output"][0]["content"]
    assert [one["token"] for one in part["logprobs"]] == ["\ud7ff", "a", "c"]
    assert part["logprobs"][1] == {
        "token": "a",
        "logprob": -0.5,
        "bytes": [97],
        "top_logprobs": [
            {"token": "a", "logprob": -0.5, "bytes": [97]},
            {"token": "<end>", "logprob": -1.5, "bytes": []},
        ],
    }


def test_thinking_its_tags_and_the_end_have_none() -> None:
    parts, response = build(
        delta("", "", "<think>"),
        delta("", "Hm.", "Hm."),
        delta("", "", "</think>"),
        delta("a", "", "a"),
        delta("", "", "<end>", finish=FinishReason.STOP),
    )
    assert parts == [["a"]]
    assert "logprobs" not in response["output"][0]["content"][0]
    assert len(response["output"][1]["content"][0]["logprobs"]) == 1
