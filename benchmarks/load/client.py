"""Sends planned requests on schedule and records the outcomes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from benchmarks.http_stream import HttpError, post_events
from benchmarks.load.arrivals import PlannedRequest


@dataclass(frozen=True)
class Target:
    """A server with an OpenAI-compatible API.

    Args:
        url: base URL, including ``/v1``.
        model: model name in the requests.
        chat: use chat completions; otherwise completions.
        headers: headers of every request.
        extra: further fields in the body of every request.
    """

    url: str
    model: str
    chat: bool
    headers: dict[str, str] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def endpoint(self) -> str:
        return f"{self.url.rstrip('/')}/{'chat/completions' if self.chat else 'completions'}"

    def body(self, planned: PlannedRequest) -> dict[str, Any]:
        asked: dict[str, Any] = (
            {"messages": [{"role": "user", "content": planned.prompt}]} if self.chat else {"prompt": planned.prompt}
        )
        return {
            "model": self.model,
            **asked,
            "max_tokens": planned.reply_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self.extra,
        }


@dataclass
class RequestOutcome:
    """The outcome of a request. Times are in seconds after the start of the load."""

    planned: float
    sent: float | None = None  #: later than planned if the client could not keep up
    times: list[float] = field(default_factory=list)  #: arrival of each piece of text
    finished: float | None = None
    tokens: int | None = None  #: as counted by the server; None if it does not report usage
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    error: str | None = None


async def run(
    plan: Sequence[PlannedRequest],
    target: Target,
    *,
    max_in_flight: int,
    timeout: float,
    progress: Callable[[RequestOutcome], object] | None = None,
) -> list[RequestOutcome]:
    """Sends all requests on schedule and waits for the replies.

    A request never waits for earlier ones, except when ``max_in_flight`` are open; then it is sent late. Latencies
    count from the planned time, so they include such a delay.

    Args:
        plan: the planned requests.
        target: the server.
        max_in_flight: limit of open requests.
        timeout: seconds from a request's planned time until it is abandoned.
        progress: called after each request.
    """
    begin = perf_counter()
    slots = asyncio.Semaphore(max_in_flight)
    outcomes = [RequestOutcome(planned.at) for planned in plan]

    def now() -> float:
        return perf_counter() - begin

    async def send(planned: PlannedRequest, outcome: RequestOutcome) -> None:
        await asyncio.sleep(planned.at - now())
        try:
            async with asyncio.timeout(planned.at + timeout - now()), slots:
                outcome.sent = now()
                await _read(target, planned, outcome, now)
                outcome.finished = now()
                if not outcome.times:
                    outcome.error = "the reply has no text"
        except TimeoutError:
            outcome.error = "not started in time" if outcome.sent is None else f"not finished within {timeout:g} s"
        except (HttpError, OSError, ValueError) as error:
            outcome.error = str(error) or type(error).__name__
        if progress is not None:
            progress(outcome)

    async with asyncio.TaskGroup() as group:
        for planned, outcome in zip(plan, outcomes, strict=True):
            group.create_task(send(planned, outcome))
    return outcomes


async def _read(target: Target, planned: PlannedRequest, outcome: RequestOutcome, now: Callable[[], float]) -> None:
    ended = False
    async with aclosing(post_events(target.endpoint, target.body(planned), target.headers)) as events:
        async for event in events:
            if event == "[DONE]":
                ended = True
                continue
            chunk = json.loads(event)
            if error := chunk.get("error"):
                raise HttpError(str(error.get("message", error) if isinstance(error, dict) else error))
            for choice in chunk.get("choices") or ():
                delta = choice.get("delta") or {}
                if choice.get("text") or delta.get("content") or delta.get("reasoning_content"):
                    outcome.times.append(now())
                ended |= choice.get("finish_reason") is not None
            if usage := chunk.get("usage"):
                outcome.tokens = usage.get("completion_tokens")
                outcome.prompt_tokens = usage.get("prompt_tokens")
                outcome.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
    if not ended:
        raise HttpError("the stream ended before the reply did")
