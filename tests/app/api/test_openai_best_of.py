"""``best_of``: which replies are kept, what they count, and what is refused."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any

import pytest
from pydantic import ValidationError

from app.api.openai.best_of import check_best_of, keep_best
from app.api.openai.errors import OpenAIError
from app.api.openai.requests import MAX_CHOICES, ChatCompletionRequest, CompletionRequest
from engine import Delta, FinishReason, Logprob, SamplingParams, Timings, TokenLogprobs, UnsupportedParameterError

TEXT: dict[str, Any] = {"prompt": "x", "temperature": 1}
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}], "temperature": 1}


def score(logprob: float | None) -> TokenLogprobs:
    return TokenLogprobs(Logprob(1, logprob, "a", b"a"), 1, ())


def reply(index: int, *logprobs: float, **fields: Any) -> list[Delta]:
    """A reply of one delta for each token, and a last one with its end."""
    tokens = [
        Delta("r", text=f"{index}", index=index, token_ids=(1,), logprobs=(score(logprob),), **fields)
        for logprob in logprobs
    ]
    timings = Timings(5, 0, len(logprobs), 0.0, 0.0, 0.0, 0.0)
    return [*tokens, Delta("r", index=index, finish_reason=FinishReason.STOP, timings=timings)]


async def kept(deltas: Sequence[Delta], generated: int, number: int) -> list[Delta]:
    async def source() -> AsyncGenerator[Delta]:
        for delta in deltas:
            yield delta

    return [delta async for delta in keep_best(source(), generated, number)]


def texts(deltas: Sequence[Delta]) -> dict[int, str]:
    found: dict[int, str] = {}
    for delta in deltas:
        found[delta.index] = found.get(delta.index, "") + delta.text
    return found


async def test_the_highest_mean_wins_not_the_highest_sum() -> None:
    long, short, poor = reply(0, *[-0.5] * 8), reply(1, -1.0), reply(2, -2.0, -2.0)
    mixed = [*short, *long[:4], *poor, *long[4:]]
    assert texts(await kept(mixed, 3, 2)) == {0: "0" * 8, 1: "1"}


async def test_usage_counts_the_replies_that_are_not_returned() -> None:
    made = await kept([*reply(0, -3.0, -3.0), *reply(1, -1.0), *reply(2, -2.0, -2.0, -2.0)], 3, 2)
    assert [(one.index, one.timings.completion_tokens) for one in made if one.timings] == [(0, 3), (1, 3)]


async def test_each_prompt_has_its_own_best_as_soon_as_its_replies_have_ended() -> None:
    made = await kept([*reply(2, -2.0), *reply(3, -1.0), *reply(1, -1.0), *reply(0, -2.0)], 2, 1)
    assert [delta.text for delta in made if delta.text] == ["3", "1"]
    assert texts(made) == {1: "3", 0: "1"}


async def test_the_prompts_scores_survive_the_reply_that_brought_them() -> None:
    prompt = (score(None), score(-4.0))
    made = await kept([*reply(0, -2.0, prompt_logprobs=prompt), *reply(1, -1.0)], 2, 1)
    assert texts(made) == {0: "1"}
    assert [delta.prompt_logprobs for delta in made] == [prompt, ()]


async def test_equal_replies_keep_their_order() -> None:
    assert texts(await kept([*reply(1, -1.0), *reply(0, -1.0)], 2, 1)) == {0: "0"}


async def test_a_server_without_log_probabilities_is_refused() -> None:
    bare = [Delta("r", text="a", token_count=1), Delta("r", finish_reason=FinishReason.STOP)]
    with pytest.raises(UnsupportedParameterError, match="best_of needs log-probabilities"):
        await kept([*bare, *reply(1, -1.0)], 2, 1)


@pytest.mark.parametrize(("kind", "body"), [(CompletionRequest, TEXT), (ChatCompletionRequest, CHAT)])
async def test_more_replies_are_generated_than_returned(kind: Any, body: dict[str, Any]) -> None:
    params = kind(**body, n=2, best_of=5).sampling_params()
    assert (params.n, params.logprobs) == (5, 0)
    params = kind(**body, n=2, best_of=2).sampling_params()
    assert (params.n, params.logprobs) == (2, None)


@pytest.mark.parametrize("n", [-1, 0])
@pytest.mark.parametrize("best_of", [None, 1, 3])
def test_n_out_of_range_is_refused_with_and_without_best_of(n: int, best_of: int | None) -> None:
    with pytest.raises(ValueError, match=f"n must be between 1 and 16 \\(got {n}\\)"):
        CompletionRequest.model_validate({**TEXT, "n": n, "best_of": best_of}).sampling_params()


@pytest.mark.parametrize("asked", [{"n": 3, "best_of": 2}, {"best_of": 0}, {"best_of": 17}, {"best_of": True}])
async def test_impossible_numbers_are_refused(asked: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        CompletionRequest.model_validate({**TEXT, **asked})


async def test_it_is_not_streamed() -> None:
    with pytest.raises(ValidationError, match="cannot be streamed"):
        CompletionRequest(**TEXT, best_of=2, stream=True)
    CompletionRequest(**TEXT, n=2, best_of=2, stream=True)


async def test_generated_replies_count_towards_the_maximum() -> None:
    prompts = ["x"] * (MAX_CHOICES // 16)
    CompletionRequest.model_validate({"prompt": prompts, "best_of": 16}).sampling_params()
    with pytest.raises(ValueError, match="9 prompts with best_of=16"):
        CompletionRequest.model_validate({"prompt": [*prompts, "x"], "best_of": 16}).sampling_params()


@pytest.mark.parametrize(("temperature", "default"), [(0, 1.0), (None, 0.0)])
async def test_greedy_replies_are_not_chosen_among(temperature: float | None, default: float) -> None:
    body = CompletionRequest.model_validate({"prompt": "x", "temperature": temperature, "best_of": 2})
    with pytest.raises(OpenAIError, match="temperature is 0") as caught:
        check_best_of(body, body.sampling_params(), SamplingParams.neutral(temperature=default))
    assert caught.value.param == "best_of"
    alone = CompletionRequest.model_validate({"prompt": "x", "temperature": temperature, "best_of": 1})
    check_best_of(alone, alone.sampling_params(), SamplingParams.neutral(temperature=default))
