"""The engine's deltas in OpenAI's shapes: whole, or as chunks of a stream."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, Literal

from app.api.openai.errors import translated
from app.api.sse import close, sse_event
from app.error_shapes import openai_error
from engine import Delta, EngineError, Timings

Kind = Literal["chat", "text"]


class Reply:
    """One reply on its way out."""

    def __init__(self, kind: Kind, model: str, request_id: str, *, token_ids: bool) -> None:
        """``token_ids``: the caller asked to have them returned."""
        self._kind = kind
        self._token_ids = token_ids
        self._head = {
            "id": f"{'chatcmpl' if kind == 'chat' else 'cmpl'}-{request_id}",
            "created": int(time.time()),
            "model": model,
        }

    async def whole(self, deltas: AsyncIterator[Delta]) -> dict[str, Any]:
        """Read to the end and answer in one piece.

        Raises:
            EngineError: what the engine raised on the way.
        """
        text: list[str] = []
        token_ids: list[int] = []
        last = Delta(request_id="")
        async for delta in deltas:
            text.append(delta.text)
            token_ids.extend(delta.token_ids)
            last = delta
        said = "".join(text)
        content = {"message": {"role": "assistant", "content": said}} if self._kind == "chat" else {"text": said}
        return {
            **self._head,
            "object": "chat.completion" if self._kind == "chat" else "text_completion",
            "choices": [self._choice(content, token_ids, last)],
            "usage": usage(last.timings),
        }

    async def chunks(self, deltas: AsyncIterator[Delta], *, include_usage: bool) -> AsyncGenerator[bytes]:
        """Server-sent events, one per delta that says something, ending with ``[DONE]``.

        An error on the way is sent as an event, in the shape of an error answer.
        """
        no_usage = {"usage": None} if include_usage else {}
        try:
            if self._kind == "chat":
                opening = {"delta": {"role": "assistant", "content": ""}}
                yield self._chunk([self._choice(opening, (), None)], no_usage)
            timings: Timings | None = None
            async for delta in deltas:
                timings = delta.timings or timings
                ids = delta.token_ids if self._token_ids else ()
                if delta.text or ids or delta.finish_reason is not None:
                    yield self._chunk([self._choice(self._said(delta), ids, delta)], no_usage)
            if include_usage:
                yield self._chunk([], {"usage": usage(timings)})
        except EngineError as error:
            yield error_event(error)
        finally:
            await close(deltas)
        yield sse_event("[DONE]")

    def _said(self, delta: Delta) -> dict[str, Any]:
        if self._kind == "text":
            return {"text": delta.text}
        return {"delta": {"content": delta.text} if delta.text else {}}

    def _choice(
        self, content: dict[str, Any], token_ids: tuple[int, ...] | list[int], end: Delta | None
    ) -> dict[str, Any]:
        choice = {
            "index": 0,
            **content,
            "logprobs": None,
            "finish_reason": end.finish_reason if end else None,
            "stop_reason": end.stop_reason if end else None,
        }
        if self._token_ids:
            choice["token_ids"] = list(token_ids)
        return choice

    def _chunk(self, choices: list[dict[str, Any]], extra: dict[str, Any]) -> bytes:
        kind = "chat.completion.chunk" if self._kind == "chat" else "text_completion"
        return sse_event({**self._head, "object": kind, "choices": choices, **extra})


def error_event(error: EngineError) -> bytes:
    """An error in the middle of a stream, where OpenAI's clients look for it."""
    problem = translated(error)
    return sse_event({"error": openai_error(problem.status, problem.code, problem.message)})


def usage(timings: Timings | None) -> dict[str, Any] | None:
    """Tokens read, found in the cache, and written."""
    if timings is None:
        return None
    return {
        "prompt_tokens": timings.prompt_tokens,
        "completion_tokens": timings.completion_tokens,
        "total_tokens": timings.prompt_tokens + timings.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": timings.cached_prompt_tokens},
    }
