"""``best_of``: generates more replies than the response holds, and keeps the likeliest.

As OpenAI defines it, the best reply is "the one with the highest log probability per token": the mean over its tokens,
not their sum as in vLLM's V0 engine, which prefers short replies. The log-probabilities are the model's own, before
temperature, penalties and filters.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from dataclasses import replace

from app.api.openai.errors import OpenAIError
from app.api.openai.requests import BaseCompletionRequest
from app.api.sse import close
from engine import Delta, SamplingParams, UnsupportedParameterError


def check_best_of(body: BaseCompletionRequest, params: SamplingParams, defaults: SamplingParams) -> None:
    """Refuses to choose among replies that are all the same.

    Args:
        defaults: the model's own parameters.

    Raises:
        OpenAIError: the temperature is 0, by the request or by default.
    """
    if body.chooses_best and params.with_defaults(defaults).temperature == 0:
        raise OpenAIError(
            400,
            "invalid_value",
            f"best_of must be n where temperature is 0, since all replies are then the same (got best_of={params.n} "
            f"and n={body.n or 1}). Raise the temperature, or leave best_of out.",
            "best_of",
        )


def best_replies(
    body: BaseCompletionRequest, params: SamplingParams, deltas: AsyncIterator[Delta]
) -> AsyncIterator[Delta]:
    """Returns the deltas of the replies that the response holds: all, unless the request chooses the best."""
    return keep_best(deltas, params.n, body.n or 1) if body.chooses_best else deltas


async def keep_best(deltas: AsyncIterator[Delta], generated: int, kept: int) -> AsyncGenerator[Delta]:
    """Yields the deltas of each prompt's best replies, best first, once all of its replies have ended.

    The tokens of the other replies count in the timings of the best one, so that usage covers what was generated.

    Args:
        deltas: with the log-probability of each token; ``index`` continues from one prompt to the next.
        generated: number of replies per prompt.
        kept: number of replies per prompt to keep; ``index`` continues with that.

    Raises:
        UnsupportedParameterError: a model server reports no log-probabilities.
    """
    prompts: defaultdict[int, dict[int, list[Delta]]] = defaultdict(dict)
    try:
        async for delta in deltas:
            replies = prompts[delta.index // generated]
            replies.setdefault(delta.index, []).append(delta)
            if len(replies) == generated and all(parts[-1].finish_reason is not None for parts in replies.values()):
                prompt = delta.index // generated
                for best in _ranked([replies[index] for index in sorted(replies)], kept):
                    yield replace(best, index=prompt * kept + best.index)
                del prompts[prompt]
    finally:
        await close(deltas)


def _ranked(replies: Sequence[Sequence[Delta]], kept: int) -> Iterator[Delta]:
    ranked = sorted(replies, key=_mean_logprob, reverse=True)
    unseen = sum(parts[-1].timings.completion_tokens for parts in ranked[kept:] if parts[-1].timings is not None)
    prompt_logprobs = next((part.prompt_logprobs for parts in replies for part in parts if part.prompt_logprobs), ())
    for index, parts in enumerate(ranked[:kept]):
        for number, part in enumerate(parts):
            timings = part.timings
            if index == 0 and timings is not None:
                timings = replace(timings, completion_tokens=timings.completion_tokens + unseen)
            scores = prompt_logprobs if index == number == 0 else ()
            yield replace(part, index=index, timings=timings, prompt_logprobs=scores)


def _mean_logprob(parts: Sequence[Delta]) -> float:
    """Returns the mean log-probability of a reply's tokens, its end included; 0 for a reply without any."""
    scores = [one.token.logprob for part in parts for one in part.logprobs]
    if len(scores) < sum(part.num_tokens for part in parts):
        raise UnsupportedParameterError("best_of needs log-probabilities, which the model server does not report.")
    return sum(score for score in scores if score is not None) / max(len(scores), 1)
