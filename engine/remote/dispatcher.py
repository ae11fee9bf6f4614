"""Asks servers for a reply, one after the other, until one of them gives it."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace

import httpx

from engine.errors import EngineError, EngineStoppedError, ReplyInterruptedError
from engine.interface import ChatMessage
from engine.outputs import Delta
from engine.remote.chunks import Assembly
from engine.remote.dialects import Question
from engine.remote.error_answers import Refusal, context_error, error_in_stream, refusal
from engine.remote.metrics import RemoteMetrics
from engine.remote.sse import BrokenStreamError, events
from engine.remote.token_counting import Count, Estimate, counted
from engine.remote.upstreams import Pool, Upstream, unreachable

FIRST_WAIT_SECONDS = 0.25
MAX_WAIT_SECONDS = 5.0
"""Longer than this no request waits for a server that asks for patience; the person is told instead."""
ERROR_BYTES = 2**16


class _Failure(Exception):
    """One attempt came to nothing."""

    def __init__(self, refused: Refusal) -> None:
        super().__init__(str(refused.error))
        self.refused = refused


class Asking:
    """Asks the servers of a pool.

    Args:
        retries: how often a request is sent again whose reply has not begun.
        context: tells the length of the context where the server does not.
    """

    def __init__(self, pool: Pool, retries: int, context: Callable[[], int], metrics: RemoteMetrics) -> None:
        self._context = context
        self.estimate = Estimate()
        self._pool = pool
        self._retries = retries
        self._metrics = metrics

    async def count(self, upstream: Upstream, messages: Sequence[ChatMessage]) -> Count:
        """Tokens of a conversation, by the server where it tells them."""
        try:
            tokens = await counted(self._pool.client, upstream, messages)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            self._pool.away(upstream, error)
            tokens = None
        return Count(self.estimate.of(messages), False) if tokens is None else Count(tokens, True)

    async def replies(self, question: Question, assembly: Assembly) -> AsyncGenerator[Delta]:
        """Ask one server after the other until one replies; once a token has come there is no other attempt.

        Raises:
            EngineError: as :meth:`engine.remote.client.RemoteEngine.chat`.
        """
        tried: set[Upstream] = set()
        shortened = False
        attempt = 0
        while True:
            upstream = self._pool.choose(question.about, tried)
            try:
                async with aclosing(self._attempt(upstream, question, assembly)) as deltas:
                    async for delta in deltas:
                        yield delta
                upstream.succeeded()
                return
            except _Failure as failure:
                refused = failure.refused
            if self._pool.closed:
                raise ReplyInterruptedError("The server was shut down while this reply was being written.")
            if refused.too_long and not assembly.began and not shortened:
                shortened = True
                question = await self._shortened(upstream, question, refused)
                continue
            if refused.wait is not None and not refused.broken:
                upstream.rest(min(refused.wait, MAX_WAIT_SECONDS))
            if refused.broken:
                upstream.failed()
            if assembly.began or not refused.again or attempt >= self._retries:
                raise refused.error
            fresh = [one for one in self._pool.upstreams if one.well and one not in tried and one is not upstream]
            if not fresh:
                await self._wait(attempt, refused)
            tried = (tried | {upstream}) if fresh else set()
            attempt += 1
            self._metrics.retries += 1

    async def _wait(self, attempt: int, refused: Refusal) -> None:
        """Before the same server is asked again."""
        asked = refused.wait or 0.0
        if asked > MAX_WAIT_SECONDS:
            raise refused.error
        await asyncio.sleep(max(asked, FIRST_WAIT_SECONDS * 2**attempt * random.uniform(0.5, 1.0)))

    async def _shortened(self, upstream: Upstream, question: Question, refused: Refusal) -> Question:
        """The same with as long a reply as fits, where the prompt itself does; the longest reply is an upper bound.

        Raises:
            ContextLengthError: the prompt alone is too long.
        """
        known = upstream.served.max_model_len if upstream.served is not None else None
        limit = refused.limit or known or self._context()
        tokens = refused.prompt_tokens
        if question.messages is not None:
            count = await self.count(upstream, question.messages)
            tokens = count.tokens if count.exact or tokens is None else tokens
        elif tokens is None:
            tokens = self.estimate.of(question.prompt or "")
        asked = question.params.max_tokens
        if asked is None or tokens + asked <= limit or tokens >= limit:
            # Nothing of ours can be given up: whatever was estimated, the server says that it does not fit.
            raise context_error(max(tokens, limit) if asked is None or tokens >= limit else tokens, limit)
        return replace(question, params=replace(question.params, max_tokens=limit - tokens))

    async def _attempt(self, upstream: Upstream, question: Question, assembly: Assembly) -> AsyncGenerator[Delta]:
        """One request to one server.

        Raises:
            _Failure: no reply, or not the whole of it.
        """
        served = upstream.served
        assert served is not None
        body = question.body(served.dialect, served.model)
        assembly.attempt()
        upstream.in_flight += 1
        try:
            async with self._pool.client.stream(
                "POST", f"{upstream.url}{question.path}", json=body, headers={"Accept": "text/event-stream"}
            ) as answer:
                if answer.status_code != 200:
                    told = await _error_body(answer)
                    raise _Failure(refusal(answer.status_code, answer.headers, told, server=upstream.label))
                if not answer.headers.get("content-type", "").startswith("text/event-stream"):
                    raise BrokenStreamError("it answers with something else than a stream of events")
                async with aclosing(events(answer.aiter_bytes())) as stream:
                    async for data in stream:
                        if data == "[DONE]":
                            break
                        _raise_told_error(data, upstream)
                        for delta in assembly.feed(data):
                            yield delta
        except (httpx.HTTPError, httpx.StreamError, OSError) as error:
            if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
                self._pool.away(upstream, error)
            if not assembly.ended:  # what comes behind the end of a reply is no loss
                raise _Failure(_broken(upstream, unreachable(error), began=assembly.began)) from error
        except BrokenStreamError as error:
            raise _Failure(_broken(upstream, str(error), began=assembly.began)) from error
        finally:
            upstream.in_flight -= 1
        if not assembly.ended:
            raise _Failure(_broken(upstream, "it ended before the reply did", began=assembly.began))
        for delta in assembly.end():
            yield delta


def _raise_told_error(data: str, upstream: Upstream) -> None:
    """Servers send an error in the middle as an event that has nothing else."""
    if '"error"' not in data:
        return
    try:
        told = json.loads(data)
    except ValueError:
        return  # whoever reads chunks says what is wrong with it
    if isinstance(told, dict) and told.get("error") and not told.get("choices"):
        error = told["error"]
        raise _Failure(error_in_stream(error if isinstance(error, dict) else told, server=upstream.label))


def _broken(upstream: Upstream, reason: str, *, began: bool) -> Refusal:
    if began:
        error: EngineError = ReplyInterruptedError(
            f"The model server {upstream.label} broke off in the middle of this reply: {reason}."
        )
    else:
        error = EngineStoppedError(f"The model server {upstream.label} did not reply: {reason}. Please send again.")
    return Refusal(error, again=True, broken=True)


async def _error_body(answer: httpx.Response) -> bytes:
    body = b""
    async for chunk in answer.aiter_bytes():
        body += chunk
        if len(body) >= ERROR_BYTES:
            break
    return body
