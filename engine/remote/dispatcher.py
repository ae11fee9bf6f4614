"""Dispatches a request to the pool's servers, one after the other, until one of them replies."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace

import httpx

from engine.chat_options import ChatOptions
from engine.errors import EngineError, EngineStoppedError, ReplyInterruptedError
from engine.interface import ChatMessage
from engine.outputs import Delta
from engine.remote.chat_request import ChatRequest
from engine.remote.chunks import ReplyAssembler
from engine.remote.error_responses import UpstreamFailure, context_error, parse_error_response, parse_stream_error
from engine.remote.metrics import RemoteMetrics
from engine.remote.sse import BrokenStreamError, read_events
from engine.remote.token_counting import TokenCount, TokenEstimator, count_tokens
from engine.remote.upstreams import Upstream, UpstreamPool, describe_unreachable

FIRST_BACKOFF_SECONDS = 0.25
"""Pause before the first retry on the same server; doubles with each attempt."""
MAX_BACKOFF_SECONDS = 5.0
"""Longest ``Retry-After`` that a request waits for; with a longer one the user gets the error at once."""
MAX_ERROR_BYTES = 2**16
"""Bytes of an error response after which no more are read."""


class _AttemptFailed(Exception):
    """One attempt failed."""

    def __init__(self, refused: UpstreamFailure) -> None:
        super().__init__(str(refused.error))
        self.refused = refused


class RequestDispatcher:
    """Sends requests to the servers of a pool, with retries.

    Args:
        retries: maximum retries of a request whose reply has not begun.
        context: returns the context window, in tokens, to assume where a server does not report its own.
    """

    def __init__(self, pool: UpstreamPool, retries: int, context: Callable[[], int], metrics: RemoteMetrics) -> None:
        self._context = context
        self.estimator = TokenEstimator()
        self._pool = pool
        self._retries = retries
        self._metrics = metrics

    async def count(self, upstream: Upstream, messages: Sequence[ChatMessage], options: ChatOptions) -> TokenCount:
        """Counts the tokens of a conversation on the server, or estimates them where it cannot."""
        try:
            tokens = await count_tokens(self._pool.client, upstream, messages, options)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            self._pool.mark_unreachable(upstream, error)
            tokens = None
        if tokens is None:
            return TokenCount(self.estimator.estimate(messages, options.tools), False)
        return TokenCount(tokens, True)

    async def dispatch(self, chat_request: ChatRequest, assembler: ReplyAssembler) -> AsyncGenerator[Delta]:
        """Streams the reply of the first server that gives one. After a first token there are no more attempts.

        Raises:
            EngineError: as :meth:`engine.remote.client.RemoteEngine.chat`.
        """
        tried: set[Upstream] = set()
        shortened = False
        attempt = 0
        while True:
            upstream = self._pool.choose(chat_request.affinity_key, tried)
            try:
                async with aclosing(self._attempt(upstream, chat_request, assembler)) as deltas:
                    async for delta in deltas:
                        yield delta
                upstream.record_success()
                return
            except _AttemptFailed as failure:
                refused = failure.refused
            if self._pool.closed:
                raise ReplyInterruptedError("The server was shut down while this reply was being written.")
            if refused.too_long and not assembler.has_started and not shortened:
                shortened = True
                chat_request = await self._shortened(upstream, chat_request, refused)
                continue
            if refused.retry_after_seconds is not None and not refused.is_unhealthy:
                upstream.cool_down(min(refused.retry_after_seconds, MAX_BACKOFF_SECONDS))
            if refused.is_unhealthy:
                upstream.record_failure()
            if assembler.has_started or not refused.is_retryable or attempt >= self._retries:
                raise refused.error
            fresh = [one for one in self._pool.upstreams if one.is_healthy and one not in tried and one is not upstream]
            if not fresh:
                await self._wait(attempt, refused)
            tried = (tried | {upstream}) if fresh else set()
            attempt += 1
            self._metrics.retries += 1

    async def _wait(self, attempt: int, refused: UpstreamFailure) -> None:
        """Waits before the same server is asked again; raises when it asks for a longer wait than the maximum."""
        asked = refused.retry_after_seconds or 0.0
        if asked > MAX_BACKOFF_SECONDS:
            raise refused.error
        await asyncio.sleep(max(asked, FIRST_BACKOFF_SECONDS * 2**attempt * random.uniform(0.5, 1.0)))

    async def _shortened(self, upstream: Upstream, chat_request: ChatRequest, refused: UpstreamFailure) -> ChatRequest:
        """Returns the request with ``max_tokens``, an upper bound, lowered to what fits behind the prompt.

        Raises:
            ContextLengthError: the prompt alone is too long.
        """
        known = upstream.served.max_model_len if upstream.served is not None else None
        limit = refused.limit or known or self._context()
        tokens = refused.prompt_tokens
        if chat_request.messages is not None:
            count = await self.count(upstream, chat_request.messages, chat_request.options)
            tokens = count.tokens if count.is_exact or tokens is None else tokens
        elif tokens is None:
            tokens = self.estimator.estimate(chat_request.prompt or "")
        asked = chat_request.params.max_tokens
        if asked is None or tokens + asked <= limit or tokens >= limit:
            # Lowering max_tokens cannot help: whatever the estimate, the server says that the request does not fit.
            raise context_error(max(tokens, limit) if asked is None or tokens >= limit else tokens, limit)
        return replace(chat_request, params=replace(chat_request.params, max_tokens=limit - tokens))

    async def _attempt(
        self, upstream: Upstream, chat_request: ChatRequest, assembler: ReplyAssembler
    ) -> AsyncGenerator[Delta]:
        """Sends the request to one server, and yields the deltas of the reply.

        Raises:
            _AttemptFailed: the server did not reply, or not completely.
        """
        served = upstream.served
        assert served is not None
        body = chat_request.body(served.dialect, served.model)
        assembler.start_attempt()
        upstream.in_flight += 1
        try:
            async with self._pool.client.stream(
                "POST", f"{upstream.url}{chat_request.path}", json=body, headers={"Accept": "text/event-stream"}
            ) as answer:
                if answer.status_code != 200:
                    payload = await _error_body(answer)
                    raise _AttemptFailed(
                        parse_error_response(answer.status_code, answer.headers, payload, server=upstream.label)
                    )
                if not answer.headers.get("content-type", "").startswith("text/event-stream"):
                    raise BrokenStreamError("it did not answer with an event stream")
                async with aclosing(read_events(answer.aiter_bytes())) as stream:
                    async for event in stream:
                        if event.data == "[DONE]":
                            break
                        _raise_stream_error(event.data, upstream)
                        for delta in assembler.feed(event.data):
                            yield delta
        except (httpx.HTTPError, httpx.StreamError, OSError) as error:
            if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
                self._pool.mark_unreachable(upstream, error)
            if not assembler.has_ended:  # an error after the end of the reply loses nothing
                raise _AttemptFailed(
                    _broken(upstream, describe_unreachable(error), began=assembler.has_started)
                ) from error
        except BrokenStreamError as error:
            raise _AttemptFailed(_broken(upstream, str(error), began=assembler.has_started)) from error
        finally:
            upstream.in_flight -= 1
        if not assembler.has_ended:
            raise _AttemptFailed(_broken(upstream, "the stream ended too early", began=assembler.has_started))
        for delta in assembler.finish():
            yield delta


def _raise_stream_error(data: str, upstream: Upstream) -> None:
    """Raises the error in an event, if it holds one: servers send errors in mid-stream as events of their own."""
    if '"error"' not in data:
        return
    try:
        payload = json.loads(data)
    except ValueError:
        return  # the assembler will report the invalid chunk
    if isinstance(payload, dict) and payload.get("error") and not payload.get("choices"):
        error = payload["error"]
        raise _AttemptFailed(parse_stream_error(error if isinstance(error, dict) else payload, server=upstream.label))


def _broken(upstream: Upstream, reason: str, *, began: bool) -> UpstreamFailure:
    if began:
        error: EngineError = ReplyInterruptedError(
            f"The model server {upstream.label} failed in the middle of this reply: {reason}."
        )
    else:
        error = EngineStoppedError(f"The model server {upstream.label} did not reply: {reason}. Please try again.")
    return UpstreamFailure(error, is_retryable=True, is_unhealthy=True)


async def _error_body(answer: httpx.Response) -> bytes:
    body = b""
    async for chunk in answer.aiter_bytes():
        body += chunk
        if len(body) >= MAX_ERROR_BYTES:
            break
    return body
